//! Table 6.3 of seed 001: what a guest writes and reads on a QCOW2 over a raw image, on a raw file and on a logical
//! volume. The seed used IOzone with files twice as large as the memory; here fio goes past the page caches. bonnie++
//! is left out: its requests of single characters measure the processor.

use serde_json::{Value, json};

use crate::context::Context;
use crate::devices::guest_io::{Guest, OURS};
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "thesis.table_6_3",
        "what a guest reads from a QCOW2 over a raw image, over what it reads from a logical volume; shown",
    )],
    measure,
};

/// A new file in each round, so that a QCOW2 grows each time; then the same file again.
const WORK: &str = r"
        file=--filename=/m/new-$round
        measure write $file --rw=write --bs=1M --size=256M --fallocate=none --end_fsync=1
        measure rewrite $file --rw=write --bs=1M --size=256M --loops=3 --end_fsync=1
        measure read $file --rw=read --bs=1M --size=256M --loops=4
        measure reread $file --rw=read --bs=1M --size=256M --loops=4
";
/// Percent in table 6.3 (IOzone): QCOW2/LVM, QCOW2/raw, raw/LVM.
const PUBLISHED: [(&str, [f64; 3]); 4] = [
    ("write", [85.94, 99.61, 86.28]),
    ("rewrite", [88.99, 103.21, 86.22]),
    ("read", [61.06, 76.70, 79.61]),
    ("reread", [58.99, 76.29, 77.33]),
];

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let rates = Guest { mebibytes: 1280, each: OURS, work: WORK }.run(context)?;
    let of = |format: &str, test: &str| rates.of(format, "ours", test);
    let row = |whence: &str, test: &str, [qcow2_lvm, qcow2_raw, raw_lvm]: [f64; 3]| {
        json!({
            "where": whence, "test": test, "QCOW2/LVM %": qcow2_lvm, "QCOW2/raw %": qcow2_raw,
            "raw/LVM %": raw_lvm,
        })
    };
    let mut rows: Vec<Value> = vec![];
    for (whence, format) in
        [("a guest, QCOW2 over a raw image", "overlay"), ("a guest, QCOW2 alone", "qcow2")]
    {
        for (test, _) in PUBLISHED {
            let (qcow2, raw, lvm) = (of(format, test)?, of("raw", test)?, of("lv", test)?);
            let ratios = [qcow2 / lvm, qcow2 / raw, raw / lvm].map(|ratio| ratio * 100.0);
            rows.push(row(whence, test, ratios));
        }
    }
    rows.extend(PUBLISHED.map(|(test, ratios)| row("seed 001, IOzone", test, ratios)));
    let read = of("overlay", "read")? / of("lv", "read")?;
    Ok(vec![
        Figure::new("thesis.table_6_3", &[read], "ratio", Bar::Shown)
            .peer("seed 001", "IOzone, writethrough", 0.6106, "ratio")
            .on(
                "fio, depth 8, 1 MiB in turn, new files of 256 MiB; QEMU's emulation",
                "direct in guest and host",
            )
            .with(rows.into()),
    ])
}
