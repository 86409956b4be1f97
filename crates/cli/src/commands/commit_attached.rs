//! `diskcast commit --disk` and `diskcast clone --disk`: request a commit from the process that runs an attached
//! disk.

use base::ErrorKind;
use base::units::{show_bytes, show_duration};
use daemon::attached::{Answer, CommitRequest, Committed, Quiesce, Request, Settings, ask};
use serde_json::json;
use store::ImageName;

use super::Context;
use super::disks::{folder_of, no_such_disk};
use crate::args::RunningDisk;
use crate::exit::{Exit, Failure, Result};
use crate::interrupt::Leaves;
use crate::{clock, interrupt};

/// Hint for a commit whose server did not answer.
const RUNS_ON: &str = "the disk runs on with all that was written: commit again once the server answers";

/// The commit to request.
pub(crate) struct What<'a> {
    /// Image that gets the version; `None`: the image of the disk's base.
    pub image: Option<&'a str>,
    /// Whether the image must not exist yet.
    pub new: bool,
    /// Whether the commit may follow a version that other writers published meanwhile.
    pub merge: bool,
}

pub(crate) fn commit(context: &Context, args: &RunningDisk, what: &What<'_>) -> Result<()> {
    let name = args.disk.as_deref().expect("there is a disk where there is no source");
    let folder = folder_of(&args.place, name)?;
    let Some(settings) = Settings::load(&folder)? else { return Err(no_such_disk(name)) };
    let image = what.image.map(str::parse::<ImageName>).transpose()?.map(|image| image.to_string());
    if context.global.dry_run {
        let record = json!({ "type": "plan", "disk": name, "image": image });
        let image = image.unwrap_or_else(|| "the image of its base".to_owned());
        return context
            .output
            .result(&record, || format!("{}commit the disk {name} to {image}\n", context.would()));
    }
    let request = Request::Commit(CommitRequest {
        image,
        new: what.new,
        merge: what.merge,
        quiesce: args.quiesce.as_ref().map(absolute).transpose()?,
        limit_seconds: args.quiesce_limit.as_secs(),
        orders: None,
    });
    let began = clock::now();
    let mut moment = None;
    interrupt::leaves(Leaves::CalledOff);
    let answer = ask(&folder, &request, &mut |answer| match answer {
        Answer::Moment { quiesced, seconds } => {
            moment = Some(*seconds);
            let how = if *quiesced { "frozen and thawed" } else { "taken" };
            context.output.detail(&format!("the moment is {how} in {seconds:.3} s, the disk runs on"));
        }
        Answer::Waits { message } => context.output.note(message),
        _ => {}
    });
    let done = match answer {
        Ok(Answer::Committed(done)) => done,
        Ok(_) => return Err(Failure::new(Exit::Failed, "the disk sent an answer of the wrong type")),
        Err(error) if error.kind() == ErrorKind::NotRunning => {
            return Err(Failure::from(error)
                .hint(format!("is it running? `diskcast attach {}` runs it", settings.name)));
        }
        Err(error) if error.kind() == ErrorKind::Unreachable => {
            return Err(Failure::from(error).hint(RUNS_ON));
        }
        Err(error) => return Err(error.into()),
    };
    let took = clock::now().duration_since(began);
    let Committed { image, number, changed, dirty_bytes, stored_bytes, is_base } = &done;
    let record = json!({
        "type": "committed", "disk": name, "image": image, "number": number, "changed": changed, "bytes": dirty_bytes,
        "stored_bytes": stored_bytes, "is_base": is_base, "moment_seconds": moment,
        "seconds": took.as_secs_f64(),
    });
    context.output.result(&record, || {
        if !changed {
            return format!("nothing was written to {name} since {image}@{number}\n");
        }
        let (dirty, stored, took) =
            (show_bytes(*dirty_bytes), show_bytes(*stored_bytes), show_duration(took));
        format!("committed {dirty} of {name} as {image}@{number}, {stored} stored, {took}\n")
    })
}

/// Makes the paths absolute, since the disk's process has another current folder.
fn absolute(quiesce: &Quiesce) -> std::io::Result<Quiesce> {
    match quiesce {
        Quiesce::Agent(path) => std::path::absolute(path).map(Quiesce::Agent),
        Quiesce::Mount(path) => std::path::absolute(path).map(Quiesce::Mount),
        Quiesce::Monitor(path) => std::path::absolute(path).map(Quiesce::Monitor),
    }
}
