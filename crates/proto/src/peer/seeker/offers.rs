//! What becomes of answers.

use std::net::{IpAddr, SocketAddr};

use base::{Duration, Instant};

use super::{AGAIN_AFTER, Asked, Offer, Offered, Part, Seeker, WAIT_MAX, Why};

impl Seeker {
    /// The redirector, or the member to whom a switch passed the request, answers request `number`. `from` is where
    /// the answer came from.
    pub fn handle_offer(&mut self, now: Instant, number: u32, from: IpAddr, offer: &Offer) {
        self.hearing.heard(number, self.number);
        let Some(index) = self.asked.iter().position(|asked| asked.number == number) else { return };
        let Part { batch, mask } = self.asked[index].part;
        let mask = mask & if offer.part.batch == batch { offer.part.mask } else { 0 };
        if mask == 0 {
            return;
        }
        let asked = self.asked.swap_remove(index);
        self.give_back(Part { batch, mask: asked.part.mask & !mask });
        // What has arrived meanwhile is not asked for.
        let part = Part { batch, mask: mask & self.missing.mask(batch) };
        if part.mask == 0 {
            return;
        }
        match offer.offered {
            _ if self.patience.is_lost(now) => self.ask_server(now, part),
            // Who is slow is better than nobody, or than the server.
            Offered::Nobody { .. } | Offered::Wait { .. } if asked.why == Why::Doubles => {
                self.give_back(part);
            }
            // Who does not know this kind of request may answer that nobody has it: the server has enough to send.
            Offered::Nobody { .. } | Offered::Wait { .. } if self.missed(now, &asked) => self.give_back(part),
            Offered::Nobody { others } => {
                self.counters.crowded += u64::from(others);
                self.scouts.hear(now, others);
                self.ask_server(now, part);
            }
            Offered::Wait { milliseconds } => {
                self.counters.waits += 1;
                self.give_back(part);
                let wait = Duration::from_millis(milliseconds.into()).min(WAIT_MAX);
                self.delayed.push((part, now + wait));
            }
            Offered::Member { member, address, port } => {
                let address = SocketAddr::new(address.unwrap_or(from), port);
                match self.known.is_avoided(now, member) {
                    true if self.missed(now, &asked) => self.give_back(part),
                    true => self.refuse(now, part),
                    false => {
                        if let Why::Scouts(share) = asked.why {
                            self.scouts.found(share, self.config.rank);
                        }
                        self.patience.accepted();
                        self.pull(now, member, address, part);
                    }
                }
            }
        }
    }

    /// Notes that a request that scouts found nothing; false if it is another one.
    pub(super) fn missed(&mut self, now: Instant, asked: &Asked) -> bool {
        let Why::Scouts(share) = asked.why else { return false };
        self.scouts.missed(now, share, asked.part.batch);
        true
    }

    /// The member that was offered is avoided.
    fn refuse(&mut self, now: Instant, part: Part) {
        if self.patience.refused() {
            return self.ask_server(now, part);
        }
        self.ask_again(part);
        self.delayed.push((part, now + AGAIN_AFTER));
    }
}
