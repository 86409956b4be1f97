//! Parses and prints sizes, rates and durations in the form that people use.

/// Parses a size such as `4096`, `256K`, `1.5G` or `2T` (K, M, G, T, P are powers of 1024; a trailing `B` or `iB`
/// is allowed) into bytes. Returns `None` if `text` is not a size or does not fit 64 bits.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    scaled(text.trim(), 1024)
}

/// Parses a rate such as `400M` or `1G` (K, M, G, T, P are powers of 1000, as usual for networks; a trailing `bit/s` or
/// `bps` is allowed) into bits per second. Returns `None` if `text` is not a rate or does not fit 64 bits.
#[must_use]
pub fn parse_bits_per_second(text: &str) -> Option<u64> {
    let text = text.trim();
    scaled(text.strip_suffix("bit/s").or_else(|| text.strip_suffix("bps")).unwrap_or(text).trim_end(), 1000)
}

/// Parses a number with an optional unit letter, which stands for a power of `step`.
fn scaled(text: &str, step: u64) -> Option<u64> {
    let text = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let power = match text.chars().last()?.to_ascii_uppercase() {
        'K' => 1,
        'M' => 2,
        'G' => 3,
        'T' => 4,
        'P' => 5,
        _ => 0,
    };
    let number = if power == 0 { text } else { text[..text.len() - 1].trim_end() };
    let scale = step.pow(power);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale);
    }
    // Integers keep `1.5G` exact. `fraction * scale` can exceed 64 bits.
    let (whole, fraction) = number.split_once('.')?;
    let digits = u32::try_from(fraction.len()).ok().filter(|&n| (1..=9).contains(&n))?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale) / u128::from(10u64.pow(digits));
    whole.checked_add(u64::try_from(part).ok()?)
}

/// Prints `bytes` in the largest binary unit in which the number is at least 1: `834 MiB`, `3.4 GiB`.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    show(bytes, 1024, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// Prints a rate, given in bytes per second, with decimal units: `118 MB/s`.
#[must_use]
pub fn show_bytes_per_second(rate: u64) -> String {
    show(rate, 1000, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s"])
}

/// Prints a rate, given in bits per second, with decimal units, as usual for network links: `940 Mbit/s`.
#[must_use]
pub fn show_bits_per_second(rate: u64) -> String {
    show(rate, 1000, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s", "Pbit/s", "Ebit/s"])
}

/// A duration in whole seconds for people: `8 s`, `4m12s`, `2h03m`.
#[must_use]
pub fn show_seconds(seconds: u64) -> String {
    if seconds < 60 { format!("{seconds} s") } else { show_duration(std::time::Duration::from_secs(seconds)) }
}

/// Prints a duration: `0.42 s`, `17.0 s`, `4m12s`, `2h03m`.
#[must_use]
pub fn show_duration(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.2} s", duration.as_secs_f64()),
        10..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

#[expect(clippy::cast_precision_loss, reason = "two or three digits are shown")]
fn show(amount: u64, step: u64, units: &[&str]) -> String {
    let (mut power, mut scale) = (0, 1u64);
    while power + 1 < units.len() && amount / scale >= step {
        scale *= step;
        power += 1;
    }
    let value = amount as f64 / scale as f64;
    if power == 0 || value >= 100.0 {
        format!("{value:.0} {}", units[power])
    } else {
        format!("{value:.1} {}", units[power])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("256K", 262_144), ("1.5G", 1_610_612_736), ("2TiB", 2 << 40)]
        {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "K", "x", "1.2.3K", "-1", "99999999P", "1.G"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        assert_eq!(parse_bits_per_second("1G"), Some(1_000_000_000));
        assert_eq!(parse_bits_per_second("400 Mbit/s"), Some(400_000_000));
    }

    #[test]
    fn sizes_show() {
        assert_eq!(show_bytes(0), "0 B");
        assert_eq!(show_bytes(1536), "1.5 KiB");
        assert_eq!(show_bytes(u64::MAX), "16.0 EiB");
        assert_eq!(show_bytes_per_second(118_000_000), "118 MB/s");
        assert_eq!(show_bits_per_second(1_500_000_000), "1.5 Gbit/s");
        assert_eq!(show_duration(std::time::Duration::from_secs(252)), "4m12s");
    }
}
