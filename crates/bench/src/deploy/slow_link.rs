//! The figure of a deployment over slow links, beside tools whose receivers wait already.

use std::time::{Duration, Instant};

use lab::Star;
use serde_json::json;

use super::Site;
use crate::context::Context;
use crate::crew::{Crew, Ended};
use crate::figure::{Bar, Figure, median};
use crate::peer::{PEERS, State};
use crate::room::star;
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[(
        "deploy.slow_link",
        "last of 16 hosts at 25 Mbit/s by `diskcast deploy`, over the link's time and the last login; at most 1.10",
    )],
    measure,
};

const RATE: u64 = 25_000_000;
/// The server's link is so many times as fast.
const SERVER_TIMES: u64 = 10;
const MEBIBYTES: usize = 21;
const HOSTS: u32 = 16;
const RUNS: usize = 3;
const TOOLS: &[&str] = &["uftp", "udpcast"];
const PATIENCE: Duration = Duration::from_secs(120);

fn measure(context: &Context) -> Result<Vec<Figure>> {
    #[expect(clippy::cast_precision_loss, reason = "a size in bytes")]
    let link = ((MEBIBYTES << 23) as f64) / RATE as f64;
    let (mut ratios, mut rows) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (login, deployed) = (last_login(context)?, site(context)?.deploy_to(HOSTS, &[])?);
        ratios.push(deployed / (link + login));
        rows.push(json!({ "link s": link, "last login s": login, "deploy s": deployed }));
    }
    let words = format!(
        "{MEBIBYTES} MiB of random data to files in tmpfs, read back; {HOSTS} hosts at 25 Mbit/s, the server at ten \
         times that; logins and hosts share this machine's cores; deploy without options"
    );
    let mut figure = Figure::new("deploy.slow_link", &ratios, "ratio", Bar::AtMost(1.10));
    let file = load::random_file(context, (MEBIBYTES as u64) << 20)?;
    for name in TOOLS {
        let tool = PEERS.iter().find(|peer| peer.name.to_lowercase().contains(name));
        let tool = tool.ok_or("there is such a tool")?;
        let mut seconds = Vec::new();
        for _ in 0..RUNS {
            let star = Star::build(&star(HOSTS, RATE, 0))?;
            star.shape_host(0, SERVER_TIMES * RATE, 1 << 20)?;
            let trial = tool.run_in(context, &star, RATE, &file, PATIENCE)?;
            if trial.state == State::Done {
                seconds.push(trial.last(PATIENCE));
            }
        }
        figure =
            figure.peer(tool.name, &format!("{}; receivers wait already", tool.flags), median(&seconds), "s");
    }
    std::fs::remove_file(file)?;
    Ok(vec![figure.on(&words, super::ON).with(json!(rows))])
}

/// Hosts to which no connection is open.
fn site(context: &Context) -> Result<Site<'_>> {
    let site = Site::new(context, HOSTS, (RATE, MEBIBYTES))?;
    site.star.shape_host(0, SERVER_TIMES * RATE, 1 << 20)?;
    Ok(site)
}

/// Seconds until the last of all hosts has run `true` by ssh, all logins at once.
fn last_login(context: &Context) -> Result<f64> {
    let site = site(context)?;
    let mut crew = Crew::new();
    let began = Instant::now();
    let mut members = Vec::new();
    for host in 1..=HOSTS {
        let mut ssh = site.star.host(0).command("ssh");
        ssh.args(site.sshd.options()).arg(site.star.host(host).ipv4().to_string()).arg("true");
        members.push(crew.start(&mut ssh)?);
    }
    let ended = crew.wait(&members, PATIENCE)?;
    ended.iter().try_for_each(Ended::check)?;
    if ended.len() < members.len() {
        return Err("a login did not end".into());
    }
    Ok(began.elapsed().as_secs_f64())
}
