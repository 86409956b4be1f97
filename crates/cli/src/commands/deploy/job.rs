//! What each host is to do.

use base::Digest;
use net::api::{Copies, HostJob, Put, WORK_FORMAT};
use net::deploy::{Address, Host};

use super::args::{BySsh, CopyForm};
use super::server::Serving;
use crate::commands::work;
use crate::exit::{Exit, Failure, Result};
use crate::inventory::Entry;

/// Variables of inventories that say how a host is reached.
const ADDRESS: &[&str] = &["address", "ansible_host"];
const USER: &[&str] = &["user", "ansible_user"];
const PORT: &[&str] = &["port", "ansible_port"];

/// The job of a host, but for the server.
#[derive(Debug)]
pub(super) struct Draft {
    pub name: String,
    /// Its own version, if hosts get different ones: `image@number`.
    pub reference: Option<String>,
    pub target: String,
    /// Without its version.
    pub put: Put,
    address: Address,
}

/// The jobs of all hosts; `references` has the version of each if they get different ones. A variable that a host lacks
/// is wrong usage, and so are options that `fetch` does not have.
pub(super) fn drafts(by: &BySsh, entries: &[Entry], references: &[String]) -> Result<Vec<Draft>> {
    let written = by.script()?;
    let references = references.iter().cloned().map(Some).chain(std::iter::repeat(None));
    let hosts = entries.iter().zip(references);
    let drafts = hosts.map(|(entry, reference)| draft(by, entry, reference, written.as_deref()));
    let drafts = drafts.collect::<Result<Vec<_>>>()?;
    work::check_options(drafts.iter().map(|draft| (&draft.put, draft.target.as_str())))?;
    Ok(drafts)
}

fn draft(by: &BySsh, entry: &Entry, reference: Option<String>, written: Option<&str>) -> Result<Draft> {
    let filled = |text: &str| fill(text, entry).map_err(|what| wrong(entry, &what));
    Ok(Draft {
        name: entry.name.clone(),
        reference,
        target: target(by, entry)?,
        put: Put {
            copy: if by.attaches() { Some(Copies::Attach) } else { by.copy.map(CopyForm::of_job) },
            mount: by.mount(),
            serve_seconds: by.serve_seconds()?,
            options: by.options.iter().map(|option| filled(option)).collect::<Result<_>>()?,
            before: by.before.as_deref().map(filled).transpose()?,
            written: written.map(str::to_owned),
            after: by.after.as_deref().map(filled).transpose()?,
            ..Put::default()
        },
        address: reach(entry)?,
    })
}

fn wrong(entry: &Entry, what: &str) -> Failure {
    Failure::new(Exit::Usage, format!("{}: {what}", entry.name))
}

fn variable(entry: &Entry, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| entry.variables.get(*name)).cloned()
}

/// What a host is to write or to commit.
pub(super) fn target(by: &BySsh, entry: &Entry) -> Result<String> {
    let target = by.target.clone().or_else(|| variable(entry, &["target"]));
    let target = target.ok_or_else(|| {
        wrong(entry, "nothing says where it gets the image, or which disk is meant")
            .hint("--target /dev/sda for all, or the variable `target` of the host in the inventory")
    })?;
    fill(&target, entry).map_err(|what| wrong(entry, &what))
}

/// How a host is reached.
pub(super) fn reach(entry: &Entry) -> Result<Address> {
    let (user, host) = match entry.name.rsplit_once('@') {
        Some((user, host)) => (Some(user.to_owned()), host.to_owned()),
        None => (None, entry.name.clone()),
    };
    let port = variable(entry, PORT)
        .map(|port| port.parse().map_err(|_| wrong(entry, &format!("`{port}` is not a port"))))
        .transpose()?;
    Ok(Address {
        host: variable(entry, ADDRESS).unwrap_or(host),
        user: user.or_else(|| variable(entry, USER)),
        port,
    })
}

impl Draft {
    pub(super) fn job(&self, serving: &Serving, (reference, root): (&str, Digest)) -> Host {
        let reference = self.reference.clone().unwrap_or_else(|| reference.to_owned());
        let job = HostJob {
            format: WORK_FORMAT,
            server: serving.url.clone(),
            token: serving.token.clone(),
            target: self.target.clone(),
            put: Put { reference, root: root.to_hex(), ..self.put.clone() },
            ..HostJob::default()
        };
        Host { name: self.name.clone(), address: self.address.clone(), job }
    }
}

/// The targets, for a question.
pub(super) fn targets(drafts: &[Draft]) -> String {
    let first = &drafts[0].target;
    if drafts.iter().all(|draft| draft.target == *first) {
        first.clone()
    } else {
        format!("{first} and the like")
    }
}

/// Puts the host's variables where their names stand in braces.
pub(super) fn fill(text: &str, entry: &Entry) -> std::result::Result<String, String> {
    let (mut filled, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let Some((name, behind)) = after.split_once('}') else {
            return Err(format!("`{text}`: `{{` without `}}`"));
        };
        let host = entry.name.rsplit_once('@').map_or(entry.name.as_str(), |(_, host)| host);
        let value = if name == "host" { Some(host) } else { entry.variables.get(name).map(String::as_str) };
        filled
            .push_str(value.ok_or_else(|| format!("`{text}` needs the variable `{name}`, which it lacks"))?);
        rest = behind;
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_put_in() {
        let variables = [("disk".to_owned(), "vdb".to_owned())].into();
        let entry = Entry { name: "admin@node1".to_owned(), variables };
        assert_eq!(fill("/dev/{disk}", &entry).as_deref(), Ok("/dev/vdb"));
        assert_eq!(fill("/srv/{host}/{disk}.img", &entry).as_deref(), Ok("/srv/node1/vdb.img"));
        assert!(fill("/dev/{disc}", &entry).unwrap_err().contains("`disc`"));
        assert!(fill("/dev/{disk", &entry).is_err());
    }
}
