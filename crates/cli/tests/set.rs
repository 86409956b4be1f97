//! Sets of disks at one moment, by the real binary: attached disks under writers that pass messages to each other, on
//! hosts that are reached by OpenSSH's servers, which fail in the middle.

use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::json;

use crate::attach_common::{self, Attached};
use crate::common;
use crate::common::running::Running;
use crate::set_common::{self, Agent, FREEZE, Ring, Site, THAW, of};

#[test]
fn disks_of_one_moment_are_resumed_on_other_hosts_and_committed_there() {
    let Some(site) = Site::new(4) else { return };
    let disks: Vec<_> = (1..=3).map(|host| site.attach(host, "web --name vm")).collect();
    let ring = Ring::start(&disks);
    for round in 1..=3 {
        ring.wait_for_steps(200);
        let steps = ring.steps();
        let (exit, said) = site.deploy("pod --commit --target vm", &site.hosts(&[1, 2, 3]));
        assert_eq!(exit, Some(0), "{said:#?}");
        let set = of(&said, "set");
        assert_eq!((&set["image"], &set["number"]), (&"pod".into(), &round.into()));
        let members = set["members"].as_array().unwrap();
        let names: Vec<_> = members.iter().map(|member| member["image"].as_str().unwrap()).collect();
        assert_eq!(names, ["pod.host1", "pod.host2", "pod.host3"]);
        site.check_moment(&said, steps);
    }
    ring.stop();
    drop(disks);
    // A set stays whole.
    let said = site.bench.see("remove pod.host2@3 --yes");
    assert!(said.contains("set pod@3") && said.ends_with("exit: 11\n"), "{said}");
    assert!(site.bench.see("remove pod@3 --yes").ends_with("exit: 0\n"));
    assert!(site.bench.see("remove pod.host2@3 --yes").ends_with("exit: 0\n"));

    // Each disk goes to the next host; the last two rounds are still there.
    let server = site.serve();
    let words = format!("pod@2 --resume --target re --server {} --token-file write.token", server.url);
    let (exit, said) = site.deploy(&words, &site.hosts(&[2, 3, 4]));
    assert_eq!(exit, Some(0), "{said:#?}");
    let resumed: Vec<_> = (2..=4).map(|host| site.running(host, "re")).collect();
    let bases: Vec<_> = resumed.iter().map(|status| status["image"].as_str().unwrap()).collect();
    assert_eq!(bases, ["pod.host1", "pod.host2", "pod.host3"]);
    for (host, status) in (1..).zip(&resumed) {
        assert_eq!(status["number"], 2);
        let uri = status["nbd"][0].as_str().unwrap();
        let copy = site.bench.path(&format!("resumed{host}.img"));
        assert!(attach_common::run("nbdcopy", &[uri, copy.to_str().unwrap()]));
        site.install(&format!("pod.host{host}@2"));
        common::assert_same(&site.bench.path("member.img"), &copy);
    }

    let of_set: Vec<_> = (1..=3).map(|host| format!("pod.host{host}@2")).collect();
    let resumed_with = site.messages(&of_set).unwrap();

    // They go on with their messages, and what they are now becomes the next set, through the server.
    let words = format!("pod --commit --target re --server {} --token-file write.token", server.url);
    let ring = Ring::resume(&resumed);
    ring.wait_for_steps(100);
    let steps = ring.steps();
    let (exit, said) = site.deploy(&words, &site.hosts(&[2, 3, 4]));
    assert_eq!((exit, &of(&said, "set")["number"]), (Some(0), &4.into()), "{said:#?}");
    let first = &of(&said, "set")["members"][0]["number"];
    assert_eq!(*first, 4, "host 2 had three versions of its disk in sets of this name");
    assert!(site.check_moment(&said, steps) > resumed_with, "they went on with what they had");
    ring.stop();
    site.end(&[2, 3, 4], "re");
}

#[test]
fn disks_that_are_committed_one_after_the_other_are_of_no_moment() {
    let Some(site) = Site::new(3) else { return };
    let disks: Vec<_> = (1..=3).map(|host| site.attach(host, "web --name vm")).collect();
    let ring = Ring::start(&disks);
    for host in 1..=3 {
        ring.wait_for_steps(30);
        site.commit(host, "vm", &format!("single{host}"));
    }
    ring.stop();
    let places: Vec<_> = (1..=3).map(|host| format!("single{host}")).collect();
    let wrong = site.messages(&places).unwrap_err();
    assert!(wrong.contains("and then"), "{wrong}");
}

#[test]
fn if_one_can_not_be_frozen_in_time_all_run_on_and_there_is_no_set() {
    let Some(site) = Site::new(3) else { return };
    let disks: Vec<_> = (1..=3).map(|host| site.attach(host, "web --name vm")).collect();
    let ring = Ring::start(&disks);
    let good = |_: &str| Some(json!({ "return": 1 }));
    let agents: Vec<_> = (1..=2).map(|host| Agent::start(&site, host, good)).collect();
    let words = format!("pod --commit --target vm --quiesce agent:{}/qga-{{host}}", site.path(""));
    let hosts = site.hosts(&[1, 2, 3]);

    let says_no = Agent::start(&site, 3, |command| match command {
        FREEZE => Some(json!({ "error": { "class": "GenericError", "desc": "disabled" } })),
        _ => Some(json!({ "return": 1 })),
    });
    let (exit, said) = site.deploy(&words, &hosts);
    assert_eq!(exit, Some(1), "{said:#?}");
    let why = of(&said, "error")["message"].as_str().unwrap();
    assert!(why.contains("host3") && why.contains("disabled"), "{why}");
    assert_eq!(says_no.heard(), [FREEZE]);
    site.check_nothing(&ring);
    drop(says_no);

    // It does not answer: the others are thawed when the time is over, twice.
    let silent = Agent::start(&site, 3, |command| (command == THAW).then(|| json!({ "return": 1 })));
    let (exit, said) = site.deploy(&format!("{words} --quiesce-limit 1s --attempts 2"), &hosts);
    assert_eq!(exit, Some(1), "{said:#?}");
    let phases: Vec<_> = said.iter().filter_map(|record| record["phase"].as_str()).collect();
    assert_eq!(phases, ["preparing", "freezing", "ending", "preparing", "freezing", "ending"]);
    site.check_nothing(&ring);
    for agent in agents.iter().chain([&silent]) {
        let heard = agent.heard();
        assert_eq!(heard.last().map(String::as_str), Some(THAW), "{heard:?}");
    }
    drop(silent);

    let _good = Agent::start(&site, 3, good);
    let (exit, said) = site.deploy(&words, &hosts);
    assert_eq!((exit, &of(&said, "set")["number"]), (Some(0), &1.into()), "{said:#?}");
    site.check_moment(&said, 150);
    ring.stop();
}

#[test]
fn a_deployment_that_failed_ends_when_all_machines_run_on() {
    let Some(site) = Site::new(2) else { return };
    let _disks: Vec<_> = (1..=2).map(|host| site.attach(host, "web --name vm")).collect();
    let (frozen, is_frozen) = channel();
    let (over, is_over) = channel();
    let (thaws, thawed) = channel();
    let _slow = Agent::start(&site, 1, move |command| {
        if command == FREEZE {
            frozen.send(()).unwrap();
        } else {
            // It takes its time, unless nobody waits for it.
            thaws.send(is_over.recv_timeout(Duration::from_secs(1)).is_err()).unwrap();
        }
        Some(json!({ "return": 1 }))
    });
    let _says_no = Agent::start(&site, 2, move |_| {
        is_frozen.recv().unwrap();
        Some(json!({ "error": { "class": "GenericError", "desc": "disabled" } }))
    });
    let words = format!("pod --commit --target vm --quiesce agent:{}/qga-{{host}}", site.path(""));
    let (exit, said) = site.deploy(&words, &site.hosts(&[1, 2]));
    assert_eq!(exit, Some(1), "{said:#?}");
    over.send(()).unwrap();
    assert!(thawed.recv().unwrap(), "it was over while a machine was frozen: {said:#?}");
}

#[test]
fn a_host_that_is_lost_after_the_moment_and_a_deployment_that_is_killed_leave_no_set() {
    let Some(site) = Site::new(3) else { return };
    let disks: Vec<_> = (1..=3).map(|host| site.attach(host, "web --name vm")).collect();
    let ring = Ring::start(&disks);
    let words =
        format!("pod --commit --target vm --attempts 1 --quiesce agent:{}/qga-{{host}}", site.path(""));
    let hosts = site.hosts(&[1, 2, 3]);
    let good = |_: &str| Some(json!({ "return": 1 }));
    let _agents: Vec<_> = (1..=2).map(|host| Agent::start(&site, host, good)).collect();

    // All are frozen but one, and the deployment is killed.
    let (frozen, is_frozen) = channel();
    let (answer, may_answer) = channel();
    let agent = Agent::start(&site, 3, move |command| {
        if command == FREEZE {
            frozen.send(()).unwrap();
            // The test ends if it does not come.
            let _ = may_answer.recv();
        }
        Some(json!({ "return": 1 }))
    });
    let deployment = Running::start(site.command(&words, &hosts));
    is_frozen.recv().unwrap();
    drop(deployment);
    answer.send(()).unwrap();
    site.check_nothing(&ring);
    drop(agent);

    // It is thawed when all were frozen, and its disk is lost before it is stored.
    let process = disks[2].child.id().to_string();
    let agent = Agent::start(&site, 3, move |command| {
        if command == THAW {
            assert!(attach_common::run("kill", &["-KILL", &process]));
        }
        Some(json!({ "return": 1 }))
    });
    let (exit, said) = site.deploy(&words, &hosts);
    assert_eq!(exit, Some(1), "{said:#?}");
    assert!(said.iter().any(|record| record["phase"] == "storing"), "{said:#?}");
    let why = of(&said, "error")["message"].as_str().unwrap();
    assert!(why.contains("host3"), "{why}");
    assert!(site.bench.see("log pod").ends_with("exit: 10\n"));
    drop(agent);
    ring.stop();
}

#[test]
fn filesystems_of_a_set_are_clean() {
    let Some(site) = Site::new(2) else { return };
    let Some(image) = site.ext4_image() else { return };
    let disks: Vec<_> = (1..=2).map(|host| site.attach(host, &format!("{image} --name vm"))).collect();
    let mounts: Vec<_> = (1..).zip(&disks).map(|(host, disk)| site.mount(host, disk)).collect();
    let writers: Vec<_> = mounts.iter().map(|mount| mount.write_files()).collect();
    writers.iter().for_each(|writer| writer.wait_for(20));
    // Once frozen by their own kernel, once as after a power cut.
    let words = "pod --commit --target vm --quiesce";
    let hosts = site.hosts(&[1, 2]);
    let (exit, said) = site.deploy(&format!("{words} mount:{}/mnt-{{host}}", site.path("")), &hosts);
    assert_eq!(exit, Some(0), "{said:#?}");
    let (exit, said) = site.deploy("cut --commit --target vm", &hosts);
    assert_eq!(exit, Some(0), "{said:#?}");
    writers.into_iter().for_each(set_common::FileWriter::stop);
    drop(mounts);
    for host in 1..=2 {
        site.install(&format!("pod.host{host}"));
        site.bench.tool("e2fsck -fn member.img");
        site.install(&format!("cut.host{host}"));
        // It replays the journal, which is no fault.
        let mut check = Command::new("/usr/sbin/e2fsck");
        check.args(["-p"]).arg(site.bench.path("member.img")).stdout(Stdio::null());
        assert!(check.status().unwrap().code() <= Some(1));
        site.bench.tool("e2fsck -fn member.img");
    }
}

#[test]
fn a_machine_that_is_suspended_ends_with_its_disk_when_the_set_is_there() {
    let Some(site) = Site::new(2) else { return };
    let (disk, _other) = (site.attach(1, "web --name vm"), site.attach(2, "web --name vm"));
    let Some(mut machine) = site.machine(1) else { return };
    let hosts = site.hosts(&[1]);
    let monitor = format!("--target vm --quiesce monitor:{}", site.path("qmp"));

    // A commit stops it for the moment; if another disk can't be frozen it runs on, too.
    let (exit, said) = site.deploy(&format!("pod --commit {monitor}"), &hosts);
    assert_eq!((exit, machine.status()), (Some(0), "running".to_owned()), "{said:#?}");
    assert!(attach_common::qemu_io(&disk.uri, &["write -P 9 1M 4k"]));
    let quiesce = format!("quiesce=monitor:{}", site.path("qmp"));
    let both = site.hosts_with(&[&format!("1 {quiesce}"), &format!("2 {quiesce}-of-nobody")]);
    let (exit, said) = site.deploy("pod --suspend --target vm --quiesce {quiesce}", &both);
    assert_eq!((exit, machine.status()), (Some(1), "running".to_owned()), "{said:#?}");

    let (exit, said) = site.deploy(&format!("pod --suspend {monitor}"), &hosts);
    assert_eq!((exit, &of(&said, "set")["number"]), (Some(0), &2.into()), "{said:#?}");
    assert!(machine.child.wait().unwrap().success(), "QEMU has ended");
    assert_eq!(disk.ends(), Some(0));

    // It is resumed where it was: its disk has nothing that is not in the set.
    let server = site.serve();
    let words = format!("pod --resume --target vm --server {} --token-file write.token", server.url);
    let (exit, said) = site.deploy(&words, &hosts);
    assert_eq!(exit, Some(0), "{said:#?}");
    let status = site.running(1, "vm");
    // Nothing had been written for the first set, whose member is the image itself.
    assert_eq!((&status["image"], &status["number"]), (&"pod.host1".into(), &1.into()));
    assert!(attach_common::qemu_io(status["nbd"][0].as_str().unwrap(), &["read -P 9 1M 4k"]));
    site.end(&[1], "vm");
}

#[test]
fn what_is_wrong_is_said_before_anything_is_frozen() {
    let Some(site) = Site::new(1) else { return };
    let disk: Attached = site.attach(1, "web --name vm");
    let hosts = site.hosts(&[1]);
    for (words, exit, why) in [
        ("pod@3 --commit --target vm", 2, "name"),
        ("pod --commit --target vm --quiesce nothing:x", 1, "expected agent:SOCKET"),
        ("pod --commit --target other", 1, "there is no disk `other`"),
        ("pod --commit --target vm --copy overlay", 2, ""),
        ("web --resume --target vm", 2, "`web` is not a set of disks"),
    ] {
        let (found, said) = site.deploy(words, &hosts);
        assert_eq!(found, Some(exit), "{words}: {said:#?}");
        assert!(
            said.iter().any(|record| record.to_string().contains(why)) || why.is_empty(),
            "{words}: {said:#?}"
        );
    }
    assert_eq!(disk.stop(), Some(0));
}
