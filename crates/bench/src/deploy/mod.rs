//! Figures of deployments by ssh: what the plan costs beside the transfer, beside scp, with hosts that do not work, and
//! with many of them. Hosts are network namespaces with an sshd each; they share this machine's cores and its disk.

pub(crate) mod slow_link;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::{Sshd, Star, StarOptions};
use serde_json::{Value, json};

use crate::context::{Context, said, timed};
use crate::crew::{Crew, Ended};
use crate::figure::{Bar, Figure, median};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "deploy.overhead",
            "seconds that a deploy to 16 hosts takes beyond 16 fetches, started directly; at most 1",
        ),
        ("deploy.one_small", "a deploy of 64 MiB to one host over scp and sha256sum there; at most 1.0"),
        (
            "deploy.faults",
            "last of 18 hosts with one more dead, one hung and one full, over the same without; at most 1.10",
        ),
        ("deploy.cached", "seconds until a host that has the image has another overlay; at most 0.5"),
        (
            "deploy.sim_10000",
            "seconds to simulate a deployment to 10,000 hosts, a tenth of them bad; at most 300",
        ),
        ("deploy.sim_10000_memory", "MiB that this takes; at most 1024"),
    ],
    measure,
};

const RATE: u64 = 1_000_000_000;
const IMAGE_MIB: usize = 64;
/// Rate of links in bits per second, and size of the image in MiB.
const SMALL: (u64, usize) = (RATE, IMAGE_MIB);
const HOSTS: u32 = 16;
const GOOD: u32 = 18;
const ROUNDS: usize = 3;
/// Longest time of a transfer.
const PATIENCE: Duration = Duration::from_secs(120);
const ON: &str = "network namespaces on one machine, files on its disk";

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let mut figures = vec![overhead(context)?, one_small(context)?, faults(context)?, cached(context)?];
    figures.extend(simulated(context)?);
    Ok(figures)
}

/// Folder of a site for targets in memory: all of its hosts have this machine's one disk.
const MEMORY: &str = "memory";

/// Host 0 has a repository with the image `web`, the others an sshd.
pub(crate) struct Site<'a> {
    context: &'a Context,
    pub(crate) star: Star,
    sshd: Sshd,
    folder: PathBuf,
}

impl<'a> Site<'a> {
    pub(crate) fn new(context: &'a Context, hosts: u32, (rate, mebibytes): (u64, usize)) -> Result<Self> {
        let options =
            StarOptions { hosts: 1 + hosts, rate_bits_per_second: Some(rate), ..StarOptions::default() };
        let (star, folder) = (Star::build(&options)?, context.folder()?);
        let mut disk = vec![0; mebibytes << 20];
        base::Chance::from_seed(1).fill(&mut disk);
        std::fs::write(folder.join("disk.img"), disk)?;
        let repo = folder.join("repository");
        said(context.diskcast(&repo).arg("capture").arg(folder.join("disk.img")).arg("web"))?;
        // Servers see no mounts that come later.
        std::fs::create_dir(folder.join("small"))?;
        said(Command::new("mount").args(["-t", "tmpfs", "-o", "size=8M", "none"]).arg(folder.join("small")))?;
        std::fs::create_dir(folder.join(MEMORY))?;
        said(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(folder.join(MEMORY)))?;
        let sshd = Sshd::start(&star, &star.hosts()[1..], &folder)?;
        Ok(Self { context, star, sshd, folder })
    }

    /// A file of hosts, by their numbers, each with its target. Host 0 has no sshd, so nobody answers there.
    fn hosts(&self, hosts: &[(u32, &str)]) -> Result<String> {
        let line = |(number, target): &(u32, &str)| {
            let host = self.star.host(*number);
            format!("host{number} address={} target={}/{target}\n", host.ipv4(), self.folder.display())
        };
        let path = self.folder.join("hosts");
        std::fs::write(&path, hosts.iter().map(line).collect::<String>())?;
        Ok(format!("@{}", path.display()))
    }

    /// Deploys `web`; returns the seconds, and what was said. Some hosts may fail.
    pub(crate) fn deploy(
        &self,
        hosts: &[(u32, &str)],
        program: &str,
        words: &[&str],
    ) -> Result<(f64, Vec<Value>)> {
        let mut command = self.star.host(0).command(&self.context.diskcast.to_string_lossy());
        command.arg("--repo").arg(self.folder.join("repository")).args(["--json", "--yes", "deploy", "web"]);
        command.args(["--to", &self.hosts(hosts)?, "--ssh", &self.sshd.client(), "--program", program]);
        command.arg("--retry-file").arg(self.folder.join("again")).args(words);
        let began = Instant::now();
        let output = command.stdin(Stdio::null()).output()?;
        let seconds = began.elapsed().as_secs_f64();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let records = text.lines().map(serde_json::from_str).collect::<serde_json::Result<_>>()?;
        if !matches!(output.status.code(), Some(0 | 3)) {
            return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok((seconds, records))
    }

    /// Seconds until hosts 1 to `hosts` have `web`, in memory.
    pub(crate) fn deploy_to(&self, hosts: u32, words: &[&str]) -> Result<f64> {
        let names: Vec<String> = (1..=hosts).map(|host| format!("{MEMORY}/{host}.out")).collect();
        let targets: Vec<(u32, &str)> = (1..=hosts).zip(names.iter().map(String::as_str)).collect();
        let (seconds, said) = self.deploy(&targets, &self.program(), words)?;
        all_ready(&said, targets.len())?;
        self.clear()?;
        Ok(seconds)
    }

    pub(crate) fn program(&self) -> String {
        self.context.diskcast.display().to_string()
    }

    /// Removes what was written, and ends the hosts that still serve others: the next round begins like the first.
    pub(crate) fn clear(&self) -> Result<()> {
        // It fails if there are none.
        let fetches = format!(" fetch .*{}/", self.folder.display());
        let _ = said(Command::new("pkill").args(["-KILL", "-f", &fetches]));
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "out") {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        for mount in ["small", MEMORY] {
            // What holds it ends with the lab.
            let _ = said(Command::new("umount").arg("--lazy").arg(self.folder.join(mount)));
        }
    }
}

fn overhead(context: &Context) -> Result<Figure> {
    let site = Site::new(context, HOSTS, SMALL)?;
    let names: Vec<String> = (1..=HOSTS).map(|host| format!("{host}.out")).collect();
    let hosts: Vec<(u32, &str)> = (1..=HOSTS).zip(names.iter().map(String::as_str)).collect();
    let (mut beyond, mut rows) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let bare = bare(&site, &names)?;
        site.clear()?;
        let (deployed, said) = site.deploy(&hosts, &site.program(), &[])?;
        all_ready(&said, hosts.len())?;
        site.clear()?;
        beyond.push(deployed - bare);
        rows.push(json!({ "fetches s": bare, "deploy s": deployed }));
    }
    let figure = Figure::new("deploy.overhead", &beyond, "s", Bar::AtMost(1.0));
    let words = format!("{IMAGE_MIB} MiB of random data, {HOSTS} hosts, 1 Gbit/s");
    Ok(figure.on(&words, ON).with(json!(rows)))
}

/// Seconds until all hosts have the image, from a server that runs already.
fn bare(site: &Site<'_>, names: &[String]) -> Result<f64> {
    let (context, token) = (site.context, site.folder.join("token"));
    let _ = std::fs::remove_file(&token);
    let address = site.star.host(0).ipv4();
    let mut crew = Crew::new();
    let mut serve = site.star.host(0).command(&site.program());
    serve.arg("--repo").arg(site.folder.join("repository")).args(["serve", "--quiet", "--listen"]);
    serve.args([&format!("{address}:7717"), "--interface", "eth0", "--token-out"]).arg(&token);
    crew.start(serve.arg("--state").arg(site.folder.join("state")))?;
    while !token.exists() {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    crew.restart_clock();
    let mut fetches = Vec::new();
    for (host, name) in (1u32..).zip(names) {
        let mut fetch = site.star.host(host).command(&context.diskcast.to_string_lossy());
        fetch.args(["--json", "--yes", "fetch", &format!("https://{address}:7717"), "web"]);
        fetch.arg(site.folder.join(name)).arg("--token-file").arg(&token);
        fetches.push(crew.start(&mut fetch)?);
    }
    let ended = crew.wait(&fetches, PATIENCE)?;
    ended.iter().try_for_each(Ended::check)?;
    if ended.len() < fetches.len() {
        return Err("a fetch did not end".into());
    }
    Ok(ended.iter().map(|one| one.ended).fold(0.0, f64::max))
}

/// An error unless so many hosts are ready.
pub(crate) fn all_ready(said: &[Value], hosts: usize) -> Result<()> {
    let ready = said.iter().filter(|record| record["type"] == "host" && record["state"] == "ready").count();
    if ready == hosts { Ok(()) } else { Err(format!("{ready} of {hosts} hosts are ready: {said:?}").into()) }
}

fn one_small(context: &Context) -> Result<Figure> {
    let site = Site::new(context, 1, SMALL)?;
    let (disk, copy) = (site.folder.join("disk.img"), site.folder.join("scp.out"));
    let words = site.sshd.options();
    let address = site.star.host(1).ipv4();
    let (mut ratios, mut theirs) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut scp = site.star.host(0).command("scp");
        said(scp.arg("-q").args(&words).arg(&disk).arg(format!("{address}:{}", copy.display())))?;
        let mut sum = site.star.host(0).command("ssh");
        said(
            sum.args(&words)
                .arg(address.to_string())
                .arg(format!("sync {0} && sha256sum {0}", copy.display())),
        )?;
        let scp = began.elapsed().as_secs_f64();
        let (deployed, said) = site.deploy(&[(1, "1.out")], &site.program(), &[])?;
        all_ready(&said, 1)?;
        site.clear()?;
        ratios.push(deployed / scp);
        theirs.push(scp);
    }
    let figure = Figure::new("deploy.one_small", &ratios, "ratio", Bar::AtMost(1.0));
    let figure =
        figure.peer("scp", "and `sync` and `sha256sum` of the file there, by ssh", median(&theirs), "s");
    Ok(figure.on(&format!("{IMAGE_MIB} MiB of random data, one host, 1 Gbit/s"), ON))
}

fn faults(context: &Context) -> Result<Figure> {
    let site = Site::new(context, GOOD + 2, SMALL)?;
    let hung = site.star.host(GOOD + 1).ipv4();
    let program = site.folder.join("program");
    let script = format!(
        "#!/bin/sh\n[ \"$(echo $SSH_CONNECTION | cut -d ' ' -f 3)\" = {hung} ] && exec sleep 1000\nexec {} \"$@\"\n",
        site.program()
    );
    std::fs::write(&program, script)?;
    said(Command::new("chmod").arg("+x").arg(&program))?;
    let names: Vec<String> = (1..=GOOD).map(|host| format!("{host}.out")).collect();
    let good: Vec<(u32, &str)> = (1..=GOOD).zip(names.iter().map(String::as_str)).collect();
    let bad = [(0, "dead.out"), (GOOD + 1, "hung.out"), (GOOD + 2, "small/full.out")];
    let all: Vec<_> = bad.into_iter().chain(good.iter().copied()).collect();
    let (mut ratios, mut rows) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let mut last = Vec::new();
        for hosts in [&good, &all] {
            let words = ["--silence", "10s", "--attempts", "2"];
            let (_, said) = site.deploy(hosts, &program.to_string_lossy(), &words)?;
            all_ready(&said, good.len())?;
            let seconds = said.iter().filter(|record| record["type"] == "host" && record["state"] == "ready");
            last.push(seconds.filter_map(|record| record["seconds"].as_f64()).fold(0.0, f64::max));
            if hosts.len() > good.len() {
                let failed = said.iter().filter(|record| record["state"] == "failed");
                let why: Vec<_> = failed.map(|record| record["why"].to_string()).collect();
                if why.len() != bad.len() {
                    return Err(format!("{} of {} are named: {why:?}", why.len(), bad.len()).into());
                }
            }
            site.clear()?;
        }
        ratios.push(last[1] / last[0]);
        rows.push(json!({ "last without s": last[0], "last with s": last[1] }));
    }
    let figure = Figure::new("deploy.faults", &ratios, "ratio", Bar::AtMost(1.10));
    let words = format!("{IMAGE_MIB} MiB of random data, {GOOD} hosts that work and 3 that do not, 1 Gbit/s");
    Ok(figure.on(&words, ON).with(json!(rows)))
}

fn cached(context: &Context) -> Result<Figure> {
    let site = Site::new(context, 1, SMALL)?;
    let program = site.folder.join("program");
    let kept = site.folder.join("kept");
    let script =
        format!("#!/bin/sh\nexec {} \"$1\" --kept {} --keep-free 0\n", site.program(), kept.display());
    std::fs::write(&program, script)?;
    said(Command::new("chmod").arg("+x").arg(&program))?;
    let (mut seconds, mut rows) = (vec![], vec![]);
    for round in 0..=ROUNDS {
        let before = site.star.traffic()?[1].received.bytes;
        let name = format!("{round}.out");
        let (took, said) = site.deploy(&[(1, &name)], &program.to_string_lossy(), &["--copy", "overlay"])?;
        all_ready(&said, 1)?;
        let received = site.star.traffic()?[1].received.bytes - before;
        // The first one brings the image.
        if round > 0 {
            if received > 128 << 10 {
                return Err(format!("{received} bytes came though the image is there").into());
            }
            seconds.push(took);
            rows.push(json!({ "s": took, "bytes received": received }));
        }
    }
    let figure = Figure::new("deploy.cached", &seconds, "s", Bar::AtMost(0.5));
    Ok(figure
        .on(
            "an overlay over an image of 64 MiB that the host keeps, all of `diskcast deploy`; the first deploy's \
             connection by ssh is still there",
            ON,
        )
        .with(json!(rows)))
}

fn simulated(context: &Context) -> Result<Vec<Figure>> {
    let mut command = Command::new(context.diskcast.with_file_name("diskcast-sim"));
    let usage = timed(command.args(["--deploy", "--hosts", "10000", "--seed", "1"]))?;
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mib = usage.peak_bytes as f64 / 1_048_576.0;
    let on = |figure: Figure| figure.on("10,000 hosts in waves of 500, 64 at once, one plan", "virtual time");
    let (seconds, memory) = (usage.seconds, Bar::AtMost(1024.0));
    Ok(vec![
        on(Figure::new("deploy.sim_10000", &[seconds], "s", Bar::AtMost(300.0)))
            .with(json!([{ "said": usage.output.trim() }])),
        on(Figure::new("deploy.sim_10000_memory", &[mib], "MiB", memory)),
    ])
}
