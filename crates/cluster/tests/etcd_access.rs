//! The engine over an etcd that lets in only users with a certificate: tokens that end, and every way to be let in by
//! mistake or not at all.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::ErrorKind;
use cluster::metadata::engine::{Condition, Engine as _, Write};
use cluster::metadata::etcd::{Election, Etcd, EtcdAccess, EtcdSetting, EtcdUser, Secret, Term};
use lab::EtcdSite;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::conformance::{conforms_in_all, count};

const USER: &str = "diskcast";
const PASSWORD: &str = "the password of a test";

/// Access with the certificate of this authority, of this client, and with this password.
fn access(folder: &Path, authority: &str, client: &str, password: &str) -> EtcdAccess {
    let file = |name: &str, end: &str| folder.join(format!("{name}.{end}"));
    let certificate = |name| vec![CertificateDer::from_pem_file(file(name, "pem")).unwrap()];
    let key = |name| PrivateKeyDer::from_pem_file(file(name, "key")).unwrap();
    let user = || EtcdUser { name: USER.to_owned(), password: Secret(password.to_owned()) };
    EtcdAccess {
        authorities: if authority.is_empty() { vec![] } else { certificate(authority) },
        certificate: (!client.is_empty()).then(|| (certificate(client), key(client))),
        user: (!password.is_empty()).then(user),
    }
}

fn etcd(members: Vec<String>, access: EtcdAccess) -> Arc<Etcd> {
    let (prefix, lease) = ("diskcast".to_owned(), Duration::from_secs(60));
    Etcd::open(&EtcdSetting { members, access, prefix, lease, history: 100 }).unwrap()
}

fn well(site: &EtcdSite, folder: &Path) -> Arc<Etcd> {
    etcd(site.addresses(), access(folder, "ca", "client", PASSWORD))
}

fn lead(etcd: &Arc<Etcd>) -> Arc<Term> {
    match etcd.campaign("here").unwrap() {
        Election::Won(term) => term,
        Election::Lost(other) => panic!("{other} leads"),
    }
}

/// What comes of an attempt.
fn refused(members: Vec<String>, access: EtcdAccess) -> (ErrorKind, String) {
    let error = etcd(members, access).campaign("here").unwrap_err();
    (error.kind(), base::chain(&error))
}

#[test]
fn the_engine_conforms_with_tls_and_a_user_that_has_one_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut site) = EtcdSite::start_secure_or_skip(folder.path(), 3, &[]) else { return };
    let _ = site.ctl(0, &["put", "other", "kept"]);
    site.enable_users(USER, PASSWORD, "diskcast/");
    let etcd = well(&site, folder.path());
    let term = lead(&etcd);
    conforms_in_all(term.as_ref(), "");
    // The user may ask for history to be dropped.
    let old = || site.try_ctl(0, &["get", "diskcast/state/counter", "--rev", "10"]);
    assert!(old().is_some());
    assert!(term.keep().unwrap() && old().is_none());
    // The oracle: etcd's own client.
    assert_eq!(site.ctl(1, &["get", "diskcast/state/counter", "--print-value-only"]).trim(), "80");
    let shown = site.ctl(2, &["get", "--prefix", "", "--keys-only"]);
    let outside: Vec<_> =
        shown.lines().filter(|key| !key.is_empty() && !key.starts_with("diskcast/")).collect();
    assert_eq!(outside, ["other"]);
    term.resign().unwrap();
    // Somebody else's keys are not this user's.
    let (prefix, lease) = ("other".to_owned(), Duration::from_secs(60));
    let access = access(folder.path(), "ca", "client", PASSWORD);
    let setting = EtcdSetting { members: site.addresses(), access, prefix, lease, history: 1 };
    let error = Etcd::open(&setting).unwrap().campaign("here").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("permission denied: the user's role"), "{error}");
}

/// Steps are counted, so one that is made twice, or not at all, shows.
#[test]
fn tokens_that_ended_are_renewed_and_no_step_is_doubled_or_lost() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut site) = EtcdSite::start_secure_or_skip(folder.path(), 3, &["--auth-token-ttl", "1"]) else {
        return;
    };
    site.enable_users(USER, PASSWORD, "diskcast/");
    let term = lead(&well(&site, folder.path()));
    let mut steps = 0;
    let mut step = || {
        steps += 1;
        assert_eq!(count(term.as_ref(), "steps"), steps);
    };
    let ended = |site: &EtcdSite| {
        // The oracle that it has ended: the members say so in their logs, when they see the old one.
        let log = |member| std::fs::read_to_string(folder.path().join(format!("etcd-{member}.log"))).unwrap();
        assert!(site.try_ctl(0, &["endpoint", "health"]).is_some());
        (0..3).map(|member| log(member).matches("invalid auth token").count()).sum::<usize>()
    };
    step();
    let before = ended(&site);
    // Without use it lasts a second.
    for round in 1..=3 {
        std::thread::park_timeout(Duration::from_millis(2500));
        step();
        assert!(ended(&site) >= before + round, "a member has refused the token");
    }
    // Members that start again know no tokens of before.
    for member in 0..3 {
        site.kill(member);
        site.start(member);
        assert!(site.wait_until_healthy());
        step();
    }
    // A user whose rights or password were changed, and an etcd whose users were away meanwhile.
    let _ = site.ctl(0, &["role", "grant-permission", USER, "--prefix=true", "readwrite", "more/"]);
    step();
    let _ = site.ctl(0, &["auth", "disable"]);
    let _ = site.ctl(0, &["auth", "enable"]);
    step();
    assert_eq!(site.ctl(0, &["get", "diskcast/state/steps", "--print-value-only"]).trim(), steps.to_string());
    // Another password than the one that is known ends it, and nothing was changed.
    let _ = site.ctl(0, &["user", "delete", USER]);
    let put = [Write::Put("steps".to_owned(), b"0".to_vec())];
    let error = term.commit(&[], &put).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(site.ctl(0, &["get", "diskcast/state/steps", "--print-value-only"]).trim(), steps.to_string());
}

/// Tokens that name the state of the users: each change of that ends them all.
#[test]
fn signed_tokens_are_renewed_when_rights_change() {
    let folder = tempfile::tempdir().unwrap();
    let signing = |words: &str| {
        let done = std::process::Command::new("openssl").current_dir(&folder).args(words.split(' ')).output();
        assert!(done.unwrap().status.success(), "openssl {words}");
    };
    signing("genrsa -out sign.key 2048");
    signing("rsa -in sign.key -pubout -out sign.pub");
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let word =
        format!("jwt,pub-key={},priv-key={},sign-method=RS256,ttl=60s", file("sign.pub"), file("sign.key"));
    let Some(mut site) = EtcdSite::start_secure_or_skip(folder.path(), 1, &["--auth-token", &word]) else {
        return;
    };
    site.enable_users(USER, PASSWORD, "diskcast/");
    let term = lead(&well(&site, folder.path()));
    for step in 1..4u32 {
        assert_eq!(count(term.as_ref(), "steps"), step);
        let _ = site.ctl(0, &["role", "grant-permission", USER, "--prefix=true", "readwrite", "more/"]);
        // First a change, then a question.
        let put = [Write::Put("more".to_owned(), vec![])];
        assert!(term.commit(&[Condition::Absent(format!("none-{step}"))], &put).unwrap());
        let _ = site.ctl(0, &["role", "revoke-permission", USER, "--prefix=true", "more/"]);
        assert!(term.get("more").unwrap().is_some());
    }
}

#[test]
fn who_is_not_let_in_is_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let Some(mut site) = EtcdSite::start_secure_or_skip(at, 1, &[]) else { return };
    let members = site.addresses();
    let elsewhere: Vec<_> = members.iter().map(|member| member.replace("127.0.0.1", "localhost")).collect();
    let plain: Vec<_> = members.iter().map(|member| member.replace("https:", "http:")).collect();
    let (kind, told) = refused(members.clone(), access(at, "ca", "client", PASSWORD));
    assert_eq!(kind, ErrorKind::Refused, "{told}");
    assert!(told.contains("`etcdctl auth enable`, or leave --etcd-user away"), "{told}");

    site.enable_users(USER, PASSWORD, "diskcast/");
    use ErrorKind::{Denied, Io, Untrusted};
    for (members, access, kind, text) in [
        (
            &members,
            access(at, "other-ca", "client", PASSWORD),
            Untrusted,
            "not signed by the authority of --etcd-ca",
        ),
        (&elsewhere, access(at, "ca", "client", PASSWORD), Untrusted, "does not have this name"),
        (&members, access(at, "ca", "", PASSWORD), Untrusted, "--etcd-certificate and --etcd-key name it"),
        (
            &members,
            access(at, "ca", "stranger", PASSWORD),
            Untrusted,
            "--etcd-certificate and --etcd-key name it",
        ),
        (&members, access(at, "ca", "named", PASSWORD), Denied, "common name"),
        (&members, access(at, "ca", "client", "another"), Denied, "or the password is wrong"),
        (&members, access(at, "ca", "client", ""), Denied, "--etcd-user and --etcd-password-file name one"),
        (&plain, access(at, "", "", PASSWORD), Io, "if it speaks TLS, its address begins with https://"),
    ] {
        let (found, told) = refused(members.clone(), access);
        assert!(found == kind && told.contains(text), "{kind:?}, {text}: {found:?}, {told}");
        assert!(!told.contains(PASSWORD), "{told}");
    }
    let open = tempfile::tempdir().unwrap();
    let site = EtcdSite::start_or_skip(open.path(), 1, &[]).unwrap();
    let secure = site.addresses().iter().map(|member| member.replace("http:", "https:")).collect();
    let (kind, told) = refused(secure, access(at, "ca", "client", ""));
    assert!(
        kind == Io && told.contains("if it does not speak TLS, its address begins with http://"),
        "{kind:?}: {told}"
    );
}

/// One member with a certificate of another name does not keep the others from being asked.
#[test]
fn a_member_that_can_not_be_trusted_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut site) = EtcdSite::start_secure_or_skip(folder.path(), 3, &[]) else { return };
    site.enable_users(USER, PASSWORD, "diskcast/");
    let mut members = site.addresses();
    members[0] = members[0].replace("127.0.0.1", "localhost");
    let term = lead(&etcd(members, access(folder.path(), "ca", "client", PASSWORD)));
    for step in 1..5u32 {
        assert_eq!(count(term.as_ref(), "steps"), step);
    }
}
