//! Formats the UUIDs, GUIDs and labels of disks as text.

/// Formats 16 bytes as `01234567-89ab-cdef-0123-456789abcdef`.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Formats a GUID, whose first three fields are stored in little endian.
pub(crate) fn guid(b: [u8; 16]) -> String {
    let swapped = [
        b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15],
    ];
    uuid(&swapped)
}

/// Formats a UUID; `None` if all its bytes are zero, which means that there is no UUID.
pub(crate) fn some_uuid(bytes: &[u8; 16]) -> Option<String> {
    (*bytes != [0; 16]).then(|| uuid(bytes))
}

/// Formats the serial number of a FAT or exFAT as `0123-ABCD`.
pub(crate) fn serial(number: u32) -> String {
    format!("{:04X}-{:04X}", number >> 16, number & 0xFFFF)
}

/// The label in `field`: ends at the first zero byte, or with the field. Trailing blanks are removed; `None` if nothing
/// is left.
pub(crate) fn label(field: &[u8]) -> Option<String> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    let text = String::from_utf8_lossy(&field[..end]).trim_end().to_owned();
    (!text.is_empty()).then_some(text)
}
