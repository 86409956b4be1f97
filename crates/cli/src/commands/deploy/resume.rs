//! `diskcast deploy SET --resume`: which host gets which disk of the set.

use image::manifest::Member;
use store::Reference;

use super::Args;
use crate::args::FromServer;
use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::inventory::Entry;
use crate::library::Library;
use crate::{repository, version};

/// The variable of a host that says which member it gets.
const MEMBER: &str = "member";

/// Gives each host a member, whose name becomes its variable `member`. Returns the version of each: `image@number`.
pub(super) fn assign(context: &Context, args: &Args, entries: &mut [Entry]) -> Result<Vec<String>> {
    let from = FromServer { server: args.server.server.clone(), access: args.server.access.clone() };
    let library = Library::open(context, &from)?;
    let (images, place) = (library.images(), library.place(context)?);
    let set = version::sight(context, images, &place, &repository::reference(&args.name)?)?.manifest;
    if set.members.is_empty() {
        return Err(Failure::new(Exit::Usage, format!("`{}` is not a set of disks", args.name))
            .hint("`diskcast deploy NAME --copy attach` attaches disks of one image"));
    }
    let members = choose(&set.members, entries)?;
    let mut references = Vec::new();
    for (entry, member) in entries.iter_mut().zip(members) {
        let Member { name, image, number, digest } = member;
        let reference = Reference::Version(image.parse()?, *number);
        if version::sight(context, images, &place, &reference)?.digest() != *digest {
            let text = format!("`{reference}` is not the version that is in the set");
            return Err(Failure::new(Exit::Verification, text));
        }
        references.push(reference.to_string());
        entry.variables.insert(MEMBER.to_owned(), name.clone());
    }
    Ok(references)
}

/// The member of each host: those that they name, or else all in their order.
fn choose<'a>(members: &'a [Member], entries: &[Entry]) -> Result<Vec<&'a Member>> {
    let named: Vec<_> = entries.iter().filter_map(|entry| entry.variables.get(MEMBER)).collect();
    if named.len() == entries.len() {
        let find = |name: &String| {
            members
                .iter()
                .find(|member| member.name == *name)
                .ok_or_else(|| Failure::new(Exit::Usage, format!("the set has no disk of `{name}`")))
        };
        return named.into_iter().map(find).collect();
    }
    if members.len() == entries.len() {
        return Ok(members.iter().collect());
    }
    let text = format!("the set has {} disks, --to names {} hosts", members.len(), entries.len());
    Err(Failure::new(Exit::Usage, text)
        .hint("name as many hosts, or say by the variable `member` of each host which disk it gets"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_get_members_in_their_order_or_by_name() {
        let member = |name: &str| Member {
            name: name.to_owned(),
            image: "shop".to_owned(),
            number: 1,
            digest: base::Digest::of(name.as_bytes()),
        };
        let members = ["a", "b"].map(member);
        let entry = |name: &str| Entry {
            name: "host".to_owned(),
            variables: [(MEMBER.to_owned(), name.to_owned())].into(),
        };
        let names = |entries: &[Entry]| -> Vec<String> {
            choose(&members, entries)
                .ok()
                .unwrap_or_default()
                .iter()
                .map(|member| member.name.clone())
                .collect()
        };
        assert_eq!(names(&[Entry::default(), Entry::default()]), ["a", "b"]);
        assert_eq!(names(&[entry("b")]), ["b"]);
        assert!(choose(&members, &[Entry::default()]).is_err());
        assert!(choose(&members, &[entry("c")]).is_err());
    }
}
