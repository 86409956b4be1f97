//! What all replies of DHCP have in common.

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode};

/// A reply to `message` without an address for the client.
pub(super) fn reply_to(message: &Message, address: Ipv4Addr, kind: MessageType) -> Message {
    let mut reply = Message::new_with_id(
        message.xid(),
        Ipv4Addr::UNSPECIFIED,
        Ipv4Addr::UNSPECIFIED,
        Ipv4Addr::UNSPECIFIED,
        message.giaddr(),
        message.chaddr(),
    );
    reply.set_opcode(Opcode::BootReply).set_htype(message.htype()).set_flags(message.flags());
    reply.opts_mut().insert(DhcpOption::MessageType(kind));
    reply.opts_mut().insert(DhcpOption::ServerIdentifier(address));
    // RFC 6842: a client that sends an identifier wants it back. RFC 3046: so does a relay.
    for code in [OptionCode::ClientIdentifier, OptionCode::RelayAgentInformation] {
        if let Some(option) = message.opts().get(code) {
            reply.opts_mut().insert(option.clone());
        }
    }
    reply
}
