//! Tests booting without an operating system: with an empty disk, the firmware prints that it found nothing to boot.

use std::io::Write as _;
use std::time::Duration;

use base::ErrorKind;
use lab::boot::{BootOptions, Medium, until_login};

/// How the firmware's lines begin while it looks for something to boot.
const FIRMWARE_SPEAKS: &str = "BdsDxe:";

#[test]
fn the_console_is_read_until_the_prompt_and_no_longer_than_asked() {
    let mut disk = tempfile::NamedTempFile::new().unwrap();
    disk.write_all(&[0; 1 << 20]).unwrap();
    let options = BootOptions { prompt: FIRMWARE_SPEAKS.to_owned(), ..BootOptions::default() };
    let boot = match until_login(Medium::File(disk.path()), &options) {
        Err(error) if error.kind() == ErrorKind::Unsupported && std::env::var_os("CI").is_none() => return,
        result => result.unwrap(),
    };
    assert!(boot.console.contains(FIRMWARE_SPEAKS));

    let impatient = BootOptions { timeout: Duration::from_millis(1), ..options };
    let error = until_login(Medium::File(disk.path()), &impatient).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(std::fs::metadata(disk.path()).unwrap().len(), 1 << 20);

    let error = until_login(Medium::File("/nonexistent/disk".as_ref()), &BootOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
}
