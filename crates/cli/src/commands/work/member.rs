//! The disk of this host becomes a member of a set: passes orders to its process, and tells what that says.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use base::ErrorKind;
use daemon::attached::{
    Afterwards, Answer, CommitRequest, Committed, Conversation, MAY_BE_FROZEN, Orders, Request, Settings,
};
use net::api::{MemberJob, MemberWord, ORDER_SILENCE_SECONDS, SetOrder};

use super::speaker::Speaker;
use crate::args::DisksFolder;
use crate::args::parse::parse_quiesce;
use crate::commands::disks::{folder_of, no_such_disk};
use crate::exit::{Exit, Failure, Result};

/// What a host says that was called off, and did so.
pub(crate) const CALLED_OFF: &str = "it was called off";
/// How long a disk may take to go on when it was called off.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// Does it. Orders are further lines of `input`.
pub(super) fn run(job: &MemberJob, place: &DisksFolder, input: impl BufRead + Send + 'static) -> Result<()> {
    // Whoever does not listen gives no orders either.
    let speaker = Speaker::start(|| {})?;
    let word = match make(job, place, input, &speaker) {
        Ok(()) => MemberWord::Ended,
        Err(failure) => {
            let Failure { message, hint, exit, .. } = failure;
            MemberWord::Failed { exit: exit as u8, message, hint }
        }
    };
    speaker.end(&word);
    match word {
        MemberWord::Failed { exit, .. } => std::process::exit(exit.into()),
        _ => Ok(()),
    }
}

fn make(
    job: &MemberJob,
    place: &DisksFolder,
    input: impl BufRead + Send + 'static,
    speaker: &Speaker,
) -> Result<()> {
    let folder = folder_of(place, &job.disk)?;
    if Settings::load(&folder)?.is_none() {
        return Err(no_such_disk(&job.disk));
    }
    let quiesce = job.quiesce.as_deref().map(parse_quiesce).transpose();
    let request = Request::Commit(CommitRequest {
        image: Some(job.image.clone()),
        new: false,
        merge: false,
        quiesce: quiesce.map_err(|why| Failure::new(Exit::Usage, why))?,
        limit_seconds: job.limit_seconds,
        orders: Some(if job.suspend { Afterwards::Ends } else { Afterwards::Runs }),
    });
    speaker.doing("prepares the commit");
    let conversation = Conversation::open(&folder, &request).map_err(|error| match error.kind() {
        ErrorKind::NotRunning => Failure::new(Exit::Refused, format!("the disk `{}` does not run", job.disk)),
        _ => error.into(),
    })?;
    let stays = Arc::new(AtomicBool::new(false));
    let finish = pass_on(input, conversation.orders()?, &stays)?;
    let stored = |Committed { image, number, stored_bytes, .. }: &Committed| {
        let (image, number, stored_bytes) = (image.clone(), *number, *stored_bytes);
        speaker.say(&MemberWord::Stored { image, number, stored_bytes });
    };
    let last = conversation.listen(&mut |answer| match answer {
        Answer::Prepared => speaker.say(&MemberWord::Prepared),
        Answer::Frozen => speaker.say(&MemberWord::Frozen),
        Answer::Moment { seconds, .. } => {
            speaker.say(&MemberWord::Moment { seconds: *seconds });
            speaker.doing("stores the disk");
        }
        Answer::Waits { message } => speaker.doing(message),
        Answer::Stored(done) => {
            stays.store(true, Ordering::Relaxed);
            stored(done);
        }
        _ => {}
    });
    match last {
        Ok(Answer::Committed(done)) => {
            stored(&done);
            finish.recv().map_err(|_| called_off())
        }
        Ok(_) => Ok(()),
        // The end of the conversation was ours; but a machine may not have been thawed.
        Err(error)
            if !base::chain(&error).contains(MAY_BE_FROZEN)
                && matches!(finish.try_recv(), Err(TryRecvError::Disconnected)) =>
        {
            Err(called_off())
        }
        Err(error) => Err(error.into()),
    }
}

/// Passes orders on to the disk, until their end or a silence calls it off. What is returned gets the order to finish,
/// and is closed when it was called off. Only a disk that `stays` frozen hears that all are alive, and the end: others
/// take no orders any more.
fn pass_on(
    input: impl BufRead + Send + 'static,
    mut orders: Orders,
    stays: &Arc<AtomicBool>,
) -> Result<Receiver<()>> {
    let (sender, lines) = channel();
    let read = move || {
        let lines = input.split(b'\n').map_while(std::result::Result::ok);
        // Orders that are not known are those of a newer program, which notices that they are not followed.
        lines.filter_map(|line| serde_json::from_slice(&line).ok()).for_each(|order| {
            // Nobody takes orders any more when it was called off.
            let _ = sender.send(order);
        });
    };
    std::thread::Builder::new().name("input".into()).spawn(read)?;
    let (finishes, finish) = channel();
    let stays = Arc::clone(stays);
    let silence = Duration::from_secs(ORDER_SILENCE_SECONDS);
    std::thread::Builder::new().name("orders".into()).spawn(move || {
        // The end of all orders, and a silence, call it off.
        while let Ok(order) = lines.recv_timeout(silence) {
            if !matches!(order, SetOrder::Alive | SetOrder::Finish) || stays.load(Ordering::Relaxed) {
                orders.give(order);
            }
            if order == SetOrder::Finish {
                let _ = finishes.send(());
            }
        }
        drop(finishes);
        orders.call_off();
        // A disk that is stuck, or of an older program, may only understand that nobody listens.
        std::thread::park_timeout(ANSWER_TIME_MAX);
        orders.hang_up();
    })?;
    Ok(finish)
}

fn called_off() -> Failure {
    Failure::new(Exit::Interrupted, CALLED_OFF)
}
