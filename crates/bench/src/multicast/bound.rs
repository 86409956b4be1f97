//! The theoretical minimum of multicast with coded repair: the worst of many hosts determines how many packets a
//! group of blocks needs.
//!
//! A host that loses a share `p` of the packets can decode a group of `k` blocks once any `k` packets of it have
//! arrived. The sender is done with the group when the last host has it: after the maximum of as many negative
//! binomial numbers as there are hosts, `E[max] = sum over n of 1 - F(n)^hosts`, where `F(n)` is the probability that
//! at least `k` of `n` packets arrive at one host.

/// Packets over blocks that a group of `blocks` takes on average until the last of `hosts` hosts has it.
pub(super) fn images_needed(hosts: u32, blocks: u32, loss: f64) -> f64 {
    if loss <= 0.0 {
        return 1.0;
    }
    let (wanted, hosts) = (f64::from(blocks), f64::from(hosts));
    // The chance that the `blocks`-th packet to come is the n-th sent, from n = blocks on.
    let mut exactly = (wanted * (1.0 - loss).ln()).exp();
    let (mut within, mut packets, mut sent) = (exactly, wanted, wanted);
    while within < 1.0 - 1e-12 && packets < 100.0 * wanted {
        sent += 1.0 - within.powf(hosts);
        packets += 1.0;
        exactly *= loss * (packets - 1.0) / (packets - wanted);
        within += exactly;
    }
    sent / wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_host_needs_more() {
        assert!((images_needed(1, 187, 0.1) - 1.0 / 0.9).abs() < 1e-3);
        assert!((images_needed(16, 187, 0.0) - 1.0).abs() < 1e-9);
        // One block, loss of a half, two hosts: the greater of two geometric numbers, 8/3.
        assert!((images_needed(2, 1, 0.5) - 8.0 / 3.0).abs() < 1e-3);
        let worst = images_needed(16, 187, 0.1);
        assert!((1.15..1.17).contains(&worst), "{worst}");
    }
}
