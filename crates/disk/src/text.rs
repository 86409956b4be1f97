//! Names and numbers of disks as text.

/// 16 bytes in the form `01234567-89ab-cdef-0123-456789abcdef`.
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

/// A GUID as text: its first three fields are little endian.
pub(crate) fn guid(b: [u8; 16]) -> String {
    let swapped = [
        b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15],
    ];
    uuid(&swapped)
}

/// A UUID of 16 bytes, unless it is all zeros.
pub(crate) fn some_uuid(bytes: &[u8; 16]) -> Option<String> {
    (*bytes != [0; 16]).then(|| uuid(bytes))
}

/// A label that ends at its first zero byte or with its field, without spaces at its end; `None` if it is empty.
pub(crate) fn label(field: &[u8]) -> Option<String> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    let text = String::from_utf8_lossy(&field[..end]).trim_end().to_owned();
    (!text.is_empty()).then_some(text)
}
