//! The checksums of ext4 and XFS: crc32c and crc16. As in Linux, both start from all ones and the result is not
//! inverted, so that one call can continue the checksum of another.

use crc::{Algorithm, CRC_16_MODBUS, CRC_32_ISCSI, Crc, Table};

const CRC32C_ALGORITHM: Algorithm<u32> = Algorithm { xorout: 0, ..CRC_32_ISCSI };
static CRC32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC32C_ALGORITHM);
static CRC16: Crc<u16, Table<1>> = Crc::<u16, Table<1>>::new(&CRC_16_MODBUS);

/// The crc32c over `parts`, continued from `seed`. A `seed` of all ones starts a new checksum.
pub(super) fn crc32c(seed: u32, parts: &[&[u8]]) -> u32 {
    // The crate expects the initial value in unreflected bit order; crc32c is a reflected algorithm.
    let mut digest = CRC32C.digest_with_initial(seed.reverse_bits());
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize()
}

/// The crc16 over `parts`, started from all ones.
pub(super) fn crc16(parts: &[&[u8]]) -> u16 {
    let mut digest = CRC16.digest();
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_and_chaining() {
        // The check values of the catalogue of CRC algorithms, for "123456789".
        assert_eq!(crc32c(!0, &[b"123456789"]), !0xE306_9283);
        assert_eq!(crc16(&[b"123456789"]), 0x4B37);
        assert_eq!(crc32c(crc32c(!0, &[b"1234"]), &[b"567", b"89"]), !0xE306_9283);
    }
}
