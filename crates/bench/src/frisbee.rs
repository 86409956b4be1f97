//! Repeats tables of Hibler et al. (2003): 1 (capture, naive and filesystem-aware), 2 (install with and without
//! overlap), 5 (load of a server when clients start at different times).

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::context::{Context, json_line, said, timed};
use crate::figure::{Bar, Figure};
use crate::room::Room;
use crate::{Group, Result, load};

pub(crate) const TABLE_1: Group = Group {
    figures: &[(
        "frisbee.table_1",
        "capture: naive time over filesystem-aware time; rows as in the paper's table 1",
    )],
    measure: table_1,
};

pub(crate) const TABLE_2: Group = Group {
    figures: &[(
        "frisbee.table_2",
        "install to disk: one thread over overlapped stages; rows as in the paper's table 2",
    )],
    measure: table_2,
};

pub(crate) const TABLE_5: Group = Group {
    figures: &[(
        "frisbee.table_5",
        "server: bytes sent over image, 8 skewed clients; rows as in the paper's table 5",
    )],
    measure: table_5,
};

fn mega(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN) / 1e6
}

/// The disk of system files without holes, like a real disk: a capture would not read holes.
fn without_holes(context: &Context) -> Result<PathBuf> {
    let disk = context.folder()?.join("disk.img");
    said(Command::new("cp").arg("--sparse=never").arg(load::system_disk(context)?).arg(&disk))?;
    said(Command::new("sync").arg("-f").arg(&disk))?;
    Ok(disk)
}

fn table_1(context: &Context) -> Result<Vec<Figure>> {
    let disk = without_holes(context)?;
    let (mut rows, mut seconds) = (vec![], vec![]);
    for (way, flags) in [("naive", &["--raw"][..]), ("filesystem-aware", &[])] {
        let repo = context.folder()?;
        let usage = timed(context.diskcast(&repo).arg("capture").args(flags).arg(&disk).arg("bench"))?;
        let report = json_line(&usage.output, "captured")?;
        rows.push(json!({
            "compression": way, "time s": usage.seconds, "disk MB": mega(&report["disk_bytes"]),
            "taken MB": mega(&report["allocated_bytes"]), "image MB": mega(&report["encoded_bytes"]),
        }));
        seconds.push(usage.seconds);
    }
    let figure = Figure::new("frisbee.table_1", &[seconds[0] / seconds[1]], "ratio", Bar::Shown);
    Ok(vec![figure.on("4 GiB ext4 disk of system files", "repository in a folder").with(json!(rows))])
}

fn table_2(context: &Context) -> Result<Vec<Figure>> {
    let disk = load::system_disk(context)?;
    let repo = context.folder()?;
    timed(context.diskcast(&repo).args(["capture", "--raw"]).arg(&disk).arg("naive"))?;
    timed(context.diskcast(&repo).arg("capture").arg(&disk).arg("aware"))?;
    let target = repo.join("target.img").to_string_lossy().into_owned();
    let (mut rows, mut written) = (vec![], vec![]);
    for (stages, threads) in [("all cores", None), ("one thread", Some("1"))] {
        let mut row = json!({ "decoders": stages });
        for (column, name, sink) in [
            ("aware, to disk s", "aware", target.as_str()),
            ("aware, decode only s", "aware", "null:"),
            ("naive, to disk s", "naive", &target),
            ("naive, decode only s", "naive", "null:"),
        ] {
            let mut command = context.diskcast(&repo);
            command.args(["--yes", "install", name, sink, "--no-verify"]);
            said(Command::new("sync").arg("-f").arg(&repo))?;
            let usage = timed(command.args(threads.iter().flat_map(|count| ["--threads", count])))?;
            let _ = std::fs::remove_file(&target);
            row[column] = json!(usage.seconds);
            if column == "aware, to disk s" {
                written.push(usage.seconds);
            }
        }
        rows.push(row);
    }
    let figure = Figure::new("frisbee.table_2", &[written[1] / written[0]], "ratio", Bar::Shown);
    Ok(vec![figure.on("4 GiB ext4 disk of system files", "sparse file, synced; or null").with(json!(rows))])
}

/// A way to start hosts, and when host `i` starts.
type Skew = (&'static str, fn(u32) -> Duration);

fn table_5(context: &Context) -> Result<Vec<Figure>> {
    const HOSTS: u32 = 8;
    let repo = context.folder()?;
    let random = load::random_disk(context, 512 << 20)?;
    timed(context.diskcast(&repo).args(["capture", "--raw"]).arg(&random).arg("bench"))?;
    let (mut rows, mut most) = (vec![], 0.0f64);
    let starts: [Skew; 3] = [
        ("all at once", |_| Duration::ZERO),
        ("two groups, 2 s apart", |host| Duration::from_secs(2 * u64::from((host - 1) / 4))),
        ("evenly over 4 s", |host| Duration::from_millis(u64::from(host - 1) * 4000 / 7)),
    ];
    for (words, after) in starts {
        let room = Room::open(context, &repo, HOSTS, 1_000_000_000)?;
        let fetched = room.fetch("bench", |_| "null:".to_owned(), after)?;
        let served = room.close()?;
        let own: Vec<f64> =
            (1..).zip(&fetched).map(|(host, done)| done.received - after(host).as_secs_f64()).collect();
        let runtime = served.statistics["runtime_ms"].as_f64().unwrap_or(f64::NAN) / 1e3;
        let ratio = mega(&served.statistics["payload_bytes"]) / mega(&served.statistics["image_bytes"]);
        most = most.max(ratio);
        rows.push(json!({
            "starts": words, "client mean s": own.iter().sum::<f64>() / f64::from(HOSTS),
            "client last s": own.iter().copied().fold(0.0, f64::max), "server CPU \
                %": 100.0 * served.cpu_seconds / runtime,
            "server read MB": mega(&json!(served.read_bytes)), "sent MB": mega(&served.statistics["payload_bytes"]),
            "sent over image": ratio,
        }));
    }
    let figure = Figure::new("frisbee.table_5", &[most], "ratio", Bar::Shown);
    Ok(vec![
        figure.on("512 MiB of incompressible data, 8 hosts, 1 Gbit/s", "null, verifying").with(json!(rows)),
    ])
}
