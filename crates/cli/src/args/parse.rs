//! Parses and checks the values of options. Errors are texts for the user.

use base::units;
use daemon::DhcpSettings;
use daemon::attached::Quiesce;
use disk::grow::Wish;

use crate::clock;

/// Parses KEY=VALUE; the key is not empty.
pub(crate) fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// A rate in bytes a second: so large that the work ends one day.
pub(crate) fn parse_disk_rate(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        rate if rate >= 64 << 10 => Ok(rate),
        _ => Err("at least 64K".to_owned()),
    }
}

/// Parses a number of bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    units::parse_bytes(text).ok_or_else(|| "expected a number of bytes, such as 4096 or 20G".to_owned())
}

/// Parses PARTITION/VOLUME, of which both may be missing.
pub(crate) fn parse_wish(text: &str) -> Result<Wish, String> {
    let (number, volume) =
        text.split_once('/').map_or((text, None), |(number, volume)| (number, Some(volume)));
    let number = match number {
        "" => None,
        number => Some(number.parse().map_err(|_| "expected PARTITION or PARTITION/VOLUME".to_owned())?),
    };
    match volume {
        Some("") => Err("expected the name of a logical volume after the slash".to_owned()),
        volume => Ok(Wish {
            number: number.filter(|number| *number > 0),
            volume: volume.map(str::to_owned),
            to_gpt: false,
        }),
    }
}

/// Parses OFFSET+LENGTH into a range of bytes, which is not empty.
pub(crate) fn parse_range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let parsed = text.split_once('+').and_then(|(offset, length)| {
        let (offset, length) = (units::parse_bytes(offset)?, units::parse_bytes(length)?);
        Some(offset..offset.checked_add(length)?)
    });
    parsed
        .filter(|range| !range.is_empty())
        .ok_or_else(|| "expected OFFSET+LENGTH, such as 1M+4096".to_owned())
}

/// Parses what machines are told by DHCP.
pub(crate) fn parse_dhcp(text: &str) -> Result<DhcpSettings, String> {
    let range = || {
        let (range, bits) = text.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let bits = bits.parse().ok().filter(|bits| (8..=30).contains(bits))?;
        Some(DhcpSettings::Gives(first.parse().ok()?, last.parse().ok()?, bits))
    };
    match text {
        "beside" => Ok(DhcpSettings::Beside),
        "off" => Ok(DhcpSettings::Off),
        _ => range().ok_or_else(|| {
            "expected `beside`, `off`, or FIRST-LAST/BITS, such as 10.0.0.100-10.0.0.200/24".to_owned()
        }),
    }
}

/// Parses the size of a chunk: a power of two within the limits.
pub(crate) fn parse_chunk_bytes(text: &str) -> Result<u32, String> {
    use base::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN};
    units::parse_bytes(text)
        .and_then(|bytes| u32::try_from(bytes).ok())
        .filter(|bytes| bytes.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(bytes))
        .ok_or_else(|| "expected a power of two from 64K to 16M".to_owned())
}

/// Parses the memory of a pipeline: at least 32 MiB.
pub(crate) fn parse_memory(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 32 << 20;
    units::parse_bytes(text)
        .filter(|&bytes| bytes >= LEAST)
        .ok_or_else(|| "expected a size from 32M on".to_owned())
}

/// Parses the size of the cache: at least `CACHE_BYTES_MIN`.
pub(crate) fn parse_cache(text: &str) -> Result<u64, String> {
    units::parse_bytes(text)
        .filter(|&bytes| bytes >= store::CACHE_BYTES_MIN)
        .ok_or_else(|| format!("expected a size from {} on", units::show_bytes(store::CACHE_BYTES_MIN)))
}

/// Parses the memory of a receiver: at least 4 MiB.
pub(crate) fn parse_buffer(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 4 << 20;
    units::parse_bytes(text)
        .filter(|&bytes| bytes >= LEAST)
        .ok_or_else(|| "expected a size from 4M on".to_owned())
}

/// Parses a rate into bits per second: at least 1 Mbit/s.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 1_000_000;
    let expected = || "expected a rate from 1M on, such as 800M or 10G".to_owned();
    units::parse_bits_per_second(text).filter(|&rate| rate >= LEAST).ok_or_else(expected)
}

/// Parses a time with the unit s, m, h or d: from one second to 100 years.
pub(crate) fn parse_lifetime(text: &str) -> Result<std::time::Duration, String> {
    let parsed = text.char_indices().last().and_then(|(last, unit)| {
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return None,
        };
        text[..last].parse::<u64>().ok()?.checked_mul(seconds).filter(|&total| total > 0)
    });
    let century = 100 * 366 * 86_400;
    let seconds = parsed.filter(|&seconds| seconds <= century);
    seconds
        .map(std::time::Duration::from_secs)
        .ok_or_else(|| "expected a time such as 30d, 8h or 15m".to_owned())
}

/// Parses how long a window is open; 0 closes it.
pub(crate) fn parse_window(text: &str) -> Result<std::time::Duration, String> {
    match text {
        "0" | "0s" => Ok(std::time::Duration::ZERO),
        _ => parse_lifetime(text),
    }
}

/// Parses the width of a cluster's segments: `8+2`.
pub(crate) fn parse_width(text: &str) -> Result<cluster::Width, String> {
    let parsed = text.split_once('+').and_then(|(data, parity)| {
        cluster::Width::new(data.parse().ok()?, parity.parse().ok()?).filter(|width| width.parity > 0)
    });
    parsed.ok_or_else(|| "expected data and parity parts such as 8+2, at most 13 together".to_owned())
}

/// Parses a moment: as in RFC 3339, or how long it is until then. Returns seconds since 1970.
pub(crate) fn parse_moment(text: &str) -> Result<u64, String> {
    if let Ok(time) = parse_lifetime(text) {
        return Ok(clock::unix_seconds() + time.as_secs());
    }
    clock::parse_rfc3339(text)
        .ok_or_else(|| "expected a time such as 2026-12-01T22:30:00+01:00, or 2h from now".to_owned())
}

/// Parses what to freeze: `agent:SOCKET`, `monitor:SOCKET` or `mount:PATH`.
pub(crate) fn parse_quiesce(text: &str) -> Result<Quiesce, String> {
    match text.split_once(':') {
        Some(("agent", path)) if !path.is_empty() => Ok(Quiesce::Agent(path.into())),
        Some(("mount", path)) if !path.is_empty() => Ok(Quiesce::Mount(path.into())),
        Some(("monitor", path)) if !path.is_empty() => Ok(Quiesce::Monitor(path.into())),
        _ => Err("expected agent:SOCKET, monitor:SOCKET or mount:PATH".to_owned()),
    }
}

/// Parses a rate in bits per second, and returns bytes per second; 0 for `off`.
pub(crate) fn parse_background(text: &str) -> Result<u64, String> {
    match text {
        "off" => Ok(0),
        rate => parse_rate(rate).map(|bits| bits / 8).map_err(|why| format!("{why}, or `off`")),
    }
}

/// Parses UID:GID, both as numbers.
pub(crate) fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    ids.ok_or_else(|| "expected two numbers, such as 1000:1000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        assert_eq!(parse_lifetime("8h").unwrap().as_secs(), 28_800);
        for text in ["", "d", "0d", "5", "-1d", "9999999999999999999d", "400000d", "1é"] {
            assert!(parse_lifetime(text).is_err(), "{text}");
        }
        assert_eq!(parse_chunk_bytes("1M"), Ok(1 << 20));
        for text in ["3K", "300K", "32M", ""] {
            assert!(parse_chunk_bytes(text).is_err(), "{text}");
        }
        assert!(parse_rate("10").is_err() && parse_rate("1G").is_ok());
        assert_eq!(parse_label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(parse_label("=x").is_err() && parse_label("x").is_err());
    }
}
