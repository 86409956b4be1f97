//! `diskcast-sim --sweep`, `--skews`, `--mix`, `--hall` and `--thesis`: the experiments with receivers that serve each
//! other, one line for each point, with `--json` as JSON.

use base::Duration;
use sim::peers::{DELAYS_S, Kind, Mix, Outcome, Setting, Skew, Sweep, Way, hall};

/// The options of all.
struct Options {
    kinds: Vec<Kind>,
    delays: Vec<Duration>,
    sessions: u32,
    mebibytes: u32,
    sweep: Sweep,
    json: bool,
}

/// Runs the experiment of this name with the arguments after it. Returns its lines; `None` if it does not understand
/// the arguments.
pub(crate) fn run(
    name: &str,
    words: impl Iterator<Item = String>,
    mut line: impl FnMut(String),
) -> Option<()> {
    let options = parse(words)?;
    for &kind in &options.kinds {
        match name {
            "--sweep" => options.delays.iter().for_each(|&delay| line(point(&options, kind, delay))),
            "--skews" => skews(&options, kind).into_iter().for_each(&mut line),
            "--mix" => line(mix(&options, kind)),
            "--hall" => line(crowd(&options, kind)?),
            "--thesis" => line(frontend(&options, kind)),
            _ => return None,
        }
    }
    Some(())
}

fn parse(words: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options {
        kinds: Vec::new(),
        delays: Vec::new(),
        sessions: 4178,
        mebibytes: 9318,
        sweep: Sweep::new(Kind::Frisbee, Duration::ZERO),
        json: false,
    };
    let mut words = words.peekable();
    while let Some(kind) = words.peek().and_then(|word| Kind::named(word)) {
        options.kinds.push(kind);
        words.next();
    }
    while let Some(word) = words.next() {
        if word == "--json" {
            options.json = true;
            continue;
        }
        let number = words.next()?;
        let sweep = &mut options.sweep;
        match word.as_str() {
            "--delay" => options.delays.push(Duration::try_from_secs_f64(number.parse().ok()?).ok()?),
            "--receivers" => sweep.receivers = number.parse().ok().filter(|&count| count > 0)?,
            "--racks" => sweep.racks = number.parse().ok()?,
            "--batch" => sweep.batch_chunks = number.parse().ok().filter(|&count| count > 0)?,
            "--handling-us" => sweep.handling = Duration::from_micros(number.parse().ok()?),
            "--server-handling-us" => sweep.server_handling = Duration::from_micros(number.parse().ok()?),
            "--within-ms" => sweep.within = Duration::from_millis(number.parse().ok()?),
            "--misses" => sweep.misses_per_million = number.parse().ok()?,
            "--sessions" => options.sessions = number.parse().ok().filter(|&count| count > 0)?,
            "--mib" => options.mebibytes = number.parse().ok().filter(|&count| count > 0)?,
            "--seed" => sweep.seed = number.parse().ok()?,
            _ => return None,
        }
    }
    if options.kinds.is_empty() {
        options.kinds = Kind::ALL.to_vec();
    }
    if options.delays.is_empty() {
        options.delays = DELAYS_S.map(Duration::from_secs).to_vec();
    }
    Some(options)
}

/// `key` and value of each field, as JSON or to be read.
fn fields(json: bool, fields: &[(&str, String)]) -> String {
    let text = |(key, value): &(&str, String)| match value.parse::<f64>() {
        _ if !json => format!("{key} {value}"),
        Ok(number) if number.is_finite() => format!("\"{key}\":{value}"),
        Ok(_) => format!("\"{key}\":null"),
        Err(_) => format!("\"{key}\":\"{value}\""),
    };
    let all: Vec<String> = fields.iter().map(text).collect();
    if json { format!("{{{}}}", all.join(",")) } else { all.join(", ") }
}

/// What all outcomes say.
fn outcome_fields(outcome: &Outcome) -> Vec<(&'static str, String)> {
    let tally = &outcome.tally;
    let seconds = |seconds: f64| format!("{seconds:.3}");
    vec![
        ("images", format!("{:.4}", outcome.images())),
        ("server_chunks", tally.server_chunks.to_string()),
        ("peer_chunks", tally.peer_chunks.to_string()),
        ("missed_chunks", tally.missed_chunks.to_string()),
        ("median", seconds(outcome.seconds(0.5))),
        ("max", seconds(outcome.seconds(1.0))),
        ("network_median", seconds(outcome.network_seconds(0.5))),
        ("network_max", seconds(outcome.network_seconds(1.0))),
        ("requests", tally.requests.to_string()),
        ("messages", tally.messages.to_string()),
        ("handling_waited", seconds(tally.handling_waited.as_secs_f64())),
        ("server_bytes", outcome.server_bytes.to_string()),
        ("trunk_bytes", outcome.trunk_bytes.to_string()),
        ("steps", outcome.steps.to_string()),
    ]
}

fn point(options: &Options, kind: Kind, delay: Duration) -> String {
    let sweep = Sweep { kind, delay, ..options.sweep.clone() };
    let mut all = vec![
        ("policy", kind.name().to_owned()),
        ("delay", delay.as_secs_f64().to_string()),
        ("receivers", sweep.receivers.to_string()),
        ("batch", sweep.batch_chunks.to_string()),
        ("handling_us", sweep.handling.as_micros().to_string()),
    ];
    all.extend(outcome_fields(&sweep.run()));
    fields(options.json, &all)
}

fn skews(options: &Options, kind: Kind) -> Vec<String> {
    let both = [false, true].into_iter().flat_map(|large| Skew::ALL.map(|skew| (large, skew)));
    let line = |(large, skew): (bool, Skew)| {
        let image = if large { "large" } else { "small" };
        let mut all = vec![
            ("policy", kind.name().to_owned()),
            ("image", image.to_owned()),
            ("starts", skew.name().to_owned()),
        ];
        all.extend(outcome_fields(&skew.run(kind, large, options.sweep.seed)));
        fields(options.json, &all)
    };
    both.map(line).collect()
}

fn mix(options: &Options, kind: Kind) -> String {
    let mix = Mix { seed: options.sweep.seed, ..Mix::production(options.sessions) };
    let outcome = mix.run(kind);
    let all = [
        ("policy", kind.name().to_owned()),
        ("sessions", outcome.sessions.to_string()),
        ("clients", outcome.clients.to_string()),
        ("server_bytes", outcome.server_bytes.to_string()),
        ("received_bytes", outcome.received_bytes.to_string()),
        ("concurrent", format!("{:.4}", outcome.concurrent)),
        ("alone_of_efficient", format!("{:.4}", outcome.alone_of_efficient)),
        ("efficiency", format!("{:.4}", outcome.efficiency)),
        ("mean_seconds", format!("{:.3}", outcome.mean_seconds)),
    ];
    fields(options.json, &all)
}

/// Many receivers in racks, and one alone.
fn crowd(options: &Options, kind: Kind) -> Option<String> {
    let way = match kind {
        Kind::Server => Way::Server,
        Kind::Switch => Way::Switch,
        Kind::Hybrid => Way::Hybrid,
        _ => return None,
    };
    let Sweep { receivers, racks, seed, .. } = options.sweep;
    let racks = racks.max(1);
    let alone = hall(way, 1, 1, seed);
    let outcome = hall(way, racks, receivers, seed);
    let image_bytes = outcome.chunks as f64 * f64::from(1 << 20) * 1538.0 / 1448.0;
    let times = |share| outcome.network_seconds(share) / alone.network_seconds(1.0);
    let mut all = vec![
        ("policy", kind.name().to_owned()),
        ("receivers", receivers.to_string()),
        ("racks", racks.to_string()),
        ("alone", format!("{:.3}", alone.network_seconds(1.0))),
        ("times_alone_median", format!("{:.3}", times(0.5))),
        ("times_alone_95", format!("{:.3}", times(0.95))),
        ("times_alone_max", format!("{:.3}", times(1.0))),
        ("uplink_images_max", format!("{:.3}", outcome.trunk_bytes_max as f64 / image_bytes)),
    ];
    all.extend(outcome_fields(&outcome));
    Some(fields(options.json, &all))
}

/// The test system of seed 001, with its image of 9.77 GB unless another size is chosen.
fn frontend(options: &Options, kind: Kind) -> String {
    let Sweep { receivers, seed, batch_chunks, .. } = options.sweep;
    let outcome = kind.run(&Setting::thesis(receivers, options.mebibytes, seed), batch_chunks);
    let mut all = vec![
        ("policy", kind.name().to_owned()),
        ("receivers", receivers.to_string()),
        ("mib", options.mebibytes.to_string()),
    ];
    all.extend(outcome_fields(&outcome));
    fields(options.json, &all)
}
