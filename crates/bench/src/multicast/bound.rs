//! The theoretical minimum of multicast with coded repair: the host that loses the most determines how many packets a
//! group of blocks needs.
//!
//! A host can decode a group of `k` blocks as soon as any `k` packets of it have arrived. If each packet is lost with
//! probability `p`, the number of packets sent until then has a negative binomial distribution. The sender is done with
//! the group when the last host has it, that is, after the maximum of these numbers over all hosts:
//! `E[max] = sum over n >= 0 of 1 - F(n)^hosts`, where `F(n)` is the probability that at least `k` of `n` packets
//! arrive at one host.

/// Mean number of packets, divided by `blocks`, that the sender needs until the last of `hosts` hosts has a group of
/// `blocks` blocks, if each host loses each packet with probability `loss`.
pub(super) fn images_needed(hosts: u32, blocks: u32, loss: f64) -> f64 {
    if loss <= 0.0 {
        return 1.0;
    }
    let (wanted, hosts) = (f64::from(blocks), f64::from(hosts));
    // The probability that the n-th packet sent is the `blocks`-th to arrive; here for n = `blocks`.
    let mut exactly = (wanted * (1.0 - loss).ln()).exp();
    // `F(n)` is 0 for each n < `blocks`: these terms of the sum add up to `blocks`.
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
