//! What the holder of a read token can cost the others, by programs of other makers.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use super::{HOSTS, NEIGHBOUR, RATE, SINK};
use crate::context::{Context, json_line, timed};
use crate::crew::Crew;
use crate::figure::{Bar, Figure};
use crate::room::{Room, collect, last, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "hostile.token",
            "last of 2 hosts while the holder of a read token attacks the server, over without, the worst; at most 1.5",
        ),
        (
            "hostile.memory",
            "the server's peak memory while holders of a read token attack it, the most; at most 512 MiB",
        ),
    ],
    measure,
};

const MEBIBYTES: u64 = 256;
/// How long an attack lasts before the hosts begin.
const BEFORE: Duration = Duration::from_secs(3);

/// Attacks, as scripts with the variables URL, SECRET, HOST, IMAGE and MANIFEST.
const ATTACKS: &[(&str, &str)] = &[
    (
        "260 bodies that are announced and never come",
        r#"for i in $(seq 260); do (while :; do sleep 30 | timeout 30 curl -sk -o /dev/null -T - \
           -H "Authorization: Bearer $SECRET" -H 'Content-Length: 16777216' -H 'Transfer-Encoding:' \
           "$URL/api/v1/images/$IMAGE/content?offset=0"; sleep 1; done) & done; wait"#,
    ),
    (
        "150 readers that read slowly",
        r#"for i in $(seq 150); do (while :; do curl -sk -o /dev/null --limit-rate 2000 \
           -H "Authorization: Bearer $SECRET" "$URL/api/v1/content/$IMAGE@1?offset=0&bytes=8388608"; sleep 1
           done) & done; wait"#,
    ),
    (
        "300 comparisons at a time",
        r#"while :; do curl -sk -o /dev/null --parallel --parallel-immediate --parallel-max 300 \
           -H "Authorization: Bearer $SECRET" \
           "$URL/api/v1/diff?before=$IMAGE@1&after=$IMAGE@2&exact=true&n=[1-300]"; sleep 1; done"#,
    ),
    (
        "16,385 joins",
        r#"BODY="{\"reference\":\"$IMAGE@1\",\"manifest\":\"$MANIFEST\""
           BODY="$BODY,\"receiver\":\"x\",\"mtu\":1500,\"multicast\":3}"
           while :; do curl -sk -o /dev/null --parallel --parallel-max 50 -H "Authorization: Bearer $SECRET" \
           -H 'Content-Type: application/json' -d "$BODY" "$URL/api/v1/sessions?n=[1-16385]"; sleep 1; done"#,
    ),
    (
        "4,100 idle connections",
        r"ulimit -n 8192
          for i in $(seq 4100); do exec {fd}<>/dev/tcp/$HOST/7717 || sleep 0.01; done 2>/dev/null; sleep 1000",
    ),
];

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let load = &loads[0];
    // A second version, of another content, for comparisons.
    let other = crate::load::random_disk(context, (MEBIBYTES + 1) << 20)?;
    timed(context.diskcast(&repo).args(["capture", "--raw"]).arg(other).arg(&load.name))?;
    let (without, calm_bytes) = run(context, &repo, load, None)?;
    let mut rows =
        vec![json!({ "attack": "none", "last host s": without, "server's peak MiB": calm_bytes >> 20 })];
    let (mut worst, mut most): (f64, u64) = (0.0, calm_bytes);
    for (name, script) in ATTACKS {
        let (seconds, bytes) = run(context, &repo, load, Some(script))?;
        worst = worst.max(seconds / without);
        most = most.max(bytes);
        rows.push(json!({
            "attack": name, "last host s": seconds, "over without": seconds / without, "server's peak MiB": bytes >> 20,
        }));
    }
    let workload = format!("{}, 100 Mbit/s links; {} attacks, one run each", load.words, ATTACKS.len());
    Ok(vec![
        Figure::new("hostile.token", &[worst], "ratio", Bar::AtMost(1.5))
            .on(&workload, SINK)
            .with(json!(rows)),
        Figure::new("hostile.memory", &[most as f64 / f64::from(1 << 20)], "MiB", Bar::AtMost(512.0))
            .on(&workload, SINK),
    ])
}

/// Seconds until the last host has everything, and the server's peak memory in bytes.
fn run(context: &Context, repo: &Path, load: &Load, attack: Option<&str>) -> Result<(f64, u64)> {
    let room = Room::open_with(context, &[repo], &star(NEIGHBOUR, RATE, 0))?;
    let log = timed(context.diskcast(repo).args(["log", &load.name, "--json"]))?;
    let manifest = json_line(&log.output, "version")?["manifest"].as_str().unwrap_or_default().to_owned();
    let token = std::fs::read_to_string(room.token(0))?;
    let secret = token.trim().splitn(3, '.').nth(2).unwrap_or_default().to_owned();
    let address = room.star.host(0).ipv4().to_string();
    let mut crew = Crew::new();
    // The room's end kills every process in it.
    let mut attacker = attack
        .map(|script| {
            let mut command = room.star.host(NEIGHBOUR).command("bash");
            command.args(["-c", script]).env("URL", format!("https://{address}:7717")).env("HOST", &address);
            command.env("SECRET", secret).env("IMAGE", &load.name).env("MANIFEST", manifest);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        })
        .transpose()?;
    crew.wait_until(BEFORE);
    let began = crew.seconds();
    let members = (1..=HOSTS)
        .map(|host| crew.start(&mut room.fetch_command(host, 0, &format!("{}@1", load.name), "null:")))
        .collect::<Result<Vec<_>>>()?;
    let fetched = collect(&mut crew, &members)?;
    let peak = room.server_peak_bytes(0)?;
    if let Some(attacker) = &mut attacker {
        if attacker.try_wait()?.is_some() {
            return Err("the attack ended by itself".into());
        }
        attacker.kill()?;
    }
    let seconds = last(&fetched) - began;
    drop(room);
    if let Some(mut attacker) = attacker {
        attacker.wait()?;
    }
    Ok((seconds, peak))
}
