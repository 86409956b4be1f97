//! The seam: what a policy is told, and what it may do in return.

use super::Stage;
use crate::fabric::Place;

/// Decides who sends which chunk to whom. One value acts for all places: the server, the switches and the receivers.
/// Each method is called at the time of the event, and acts through the [`Stage`].
pub trait Policy {
    /// A control message.
    type Message: Clone;

    /// A receiver starts.
    fn started(&mut self, stage: &mut Stage<Self::Message>, at: Place);

    /// A message arrives. `at` is the server or a switch, which have handled all earlier messages, or a receiver that
    /// has not left.
    fn told(&mut self, stage: &mut Stage<Self::Message>, at: Place, from: Place, message: Self::Message);

    /// A chunk has arrived at a receiver completely; `fresh` if it lacked it.
    fn arrived(&mut self, stage: &mut Stage<Self::Message>, at: Place, from: Place, chunk: u32, fresh: bool);

    /// A chunk of a multicast has arrived at a receiver that lost it.
    fn missed(&mut self, _stage: &mut Stage<Self::Message>, _at: Place, _from: Place, _chunk: u32) {}

    /// A receiver has written a chunk and has room for another. Only told of machines whose memory is smaller than the
    /// image.
    fn freed(&mut self, _stage: &mut Stage<Self::Message>, _at: Place) {}

    /// A time that the policy asked for has come.
    fn woken(&mut self, _stage: &mut Stage<Self::Message>, _at: Place, _token: u64) {}

    /// A receiver has written everything and leaves. It may still send messages now.
    fn ended(&mut self, _stage: &mut Stage<Self::Message>, _at: Place) {}

    /// A message arrives at a receiver that has left. It is lost, unless the policy says what happens.
    fn unheard(&mut self, _: &mut Stage<Self::Message>, _at: Place, _from: Place, _message: Self::Message) {}
}
