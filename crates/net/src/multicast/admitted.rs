//! Everyone who was ever admitted to a session: names, and machines by address. A receiver's number is never given
//! again, since its key follows from it. So numbers are what one address could use up, until nobody can join any more.

use std::collections::HashMap;
use std::net::IpAddr;

use base::limits::SESSION_RECEIVERS_MAX;
use proto::multicast::{MachineId, ReceiverId};

/// Longest name of a receiver that is kept, in characters.
const NAME_CHARS_MAX: usize = 16;
/// Most receivers that one address ever has in a session: a sixteenth of all. Behind one address there may be a room
/// of machines, each of which joins again now and then.
const ADDRESS_RECEIVERS_MAX: usize = SESSION_RECEIVERS_MAX / 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    names: Vec<String>,
    /// The machine at each address, and how many receivers it ever had.
    machines: HashMap<IpAddr, (MachineId, usize)>,
}

impl Admitted {
    /// Number of all receivers.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// The name of a receiver; empty if there is no such receiver.
    pub(super) fn name(&self, receiver: ReceiverId) -> String {
        self.names.get(receiver.0 as usize).cloned().unwrap_or_default()
    }

    /// Admits one more receiver, at `address`. The error says why it cannot be admitted.
    pub(super) fn admit(
        &mut self,
        name: &str,
        address: IpAddr,
    ) -> std::result::Result<(ReceiverId, MachineId), String> {
        if self.names.len() >= SESSION_RECEIVERS_MAX {
            return Err(format!("the session has had {} receivers", self.names.len()));
        }
        let next = MachineId(u32::try_from(self.machines.len()).expect("no more than receivers"));
        let (machine, receivers) = self.machines.entry(address).or_insert((next, 0));
        if *receivers >= ADDRESS_RECEIVERS_MAX {
            return Err(format!("the session has had {receivers} receivers at {address}"));
        }
        *receivers += 1;
        let receiver = u32::try_from(self.names.len()).expect("below SESSION_RECEIVERS_MAX");
        self.names.push(name.chars().take(NAME_CHARS_MAX).collect());
        Ok((ReceiverId(receiver), *machine))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(host: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + host).into()
    }

    #[test]
    fn one_address_cannot_use_up_the_session() {
        let mut admitted = Admitted::default();
        let (greedy, honest) = (address(1), address(2));
        let tries = (0..SESSION_RECEIVERS_MAX).filter(|_| admitted.admit("x", greedy).is_ok()).count();
        assert_eq!(tries, SESSION_RECEIVERS_MAX / 16);
        let why = admitted.admit("x", greedy).unwrap_err();
        assert!(why.contains("at 10.0.0.1"), "{why}");
        let (receiver, machine) = admitted.admit("honest", honest).unwrap();
        assert_eq!((receiver, machine), (ReceiverId(1024), MachineId(1)));
        assert_eq!(admitted.name(receiver), "honest");
    }

    #[test]
    fn a_session_has_a_bounded_number_of_receivers_with_short_names() {
        let mut admitted = Admitted::default();
        for number in 0..u32::try_from(SESSION_RECEIVERS_MAX).unwrap() {
            let (receiver, machine) = admitted.admit(&"n".repeat(99), address(number % 16)).unwrap();
            assert_eq!((receiver.0, machine.0), (number, number % 16));
        }
        assert_eq!((admitted.len(), admitted.name(ReceiverId(0)).len()), (SESSION_RECEIVERS_MAX, 16));
        admitted.admit("x", address(16)).unwrap_err();
    }
}
