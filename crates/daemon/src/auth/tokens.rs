//! Keeps the tokens of long-running clients valid: where a token is read and its renewal is stored, and a thread that
//! renews tokens in time and reports failures. formats/api.md, "Tokens".

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use net::client::{Client, Credential};
use net::token::{JoinToken, Standing, Term};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::private_file::{read_private, write_private};

/// Limits of the pause between two checks of a token. The pause depends on the token's lifetime, so that also
/// short-lived tokens are renewed in time.
const LOOK_MAX: Duration = Duration::from_secs(60);
const LOOK_MIN: Duration = Duration::from_millis(200);
/// Number of checks in the lifetime of a token.
const LOOKS: u64 = 20;
/// Pause between two searches for a replacement of an expired token.
const LOOK_ENDED: Duration = Duration::from_secs(1);
/// Pause between two requests to a server that rejects the token or has not reported its term.
const LOOK_REJECTED: Duration = Duration::from_secs(10);

/// Reads the original token, as the user provided it.
pub type Given = Arc<dyn Fn() -> Result<JoinToken> + Send + Sync>;

/// Where a token comes from: the original one (for example in a file, which may change), and its renewal, which the
/// client keeps in a file of its own, of mode 0600.
#[derive(Clone)]
pub struct Place {
    /// Reads the original token.
    pub given: Given,
    /// The file with the renewed token. If `None`, the renewed token exists only in memory.
    pub kept: Option<PathBuf>,
}

/// Content of the file with a renewed token.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// The renewed token.
    token: String,
    /// BLAKE3 of the original token, in hexadecimal digits. If the original token is another one by now, the renewal
    /// is ignored.
    given: String,
}

impl Place {
    /// Returns the valid token: the renewal of the original token if there is one, else the original token.
    ///
    /// # Errors
    /// Those of reading the original token; `Refused` if other users can read the renewal's file; `Io`.
    pub fn load(&self) -> Result<JoinToken> {
        let given = (self.given)()?;
        Ok(self.renewed(&given)?.unwrap_or(given))
    }

    fn renewed(&self, given: &JoinToken) -> Result<Option<JoinToken>> {
        let Some(path) = self.kept.as_ref().filter(|path| path.exists()) else { return Ok(None) };
        let kept = serde_json::from_slice::<Kept>(&read_private(path)?).ok();
        // An unreadable renewal counts as none: the original token is still there.
        let kept = kept.filter(|kept| kept.given == name_of(given));
        Ok(kept.and_then(|kept| kept.token.parse().ok()))
    }

    /// Stores `token` as the renewal of the original token.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn keep(&self, token: &JoinToken) -> Result<()> {
        let Some(path) = &self.kept else { return Ok(()) };
        let kept = Kept { token: token.to_string(), given: name_of(&(self.given)()?) };
        write_private(path, &serde_json::to_string(&kept).expect("plain data"))
    }

    /// The credential that clients of the server send. It reads the token again when the server rejects it.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn credential(&self) -> Result<Arc<Credential>> {
        let (this, renewable) = (self.clone(), self.kept.is_some());
        let first = self.load()?;
        let (last, memory) = (Mutex::new((self.given)()?), !renewable);
        // Without a file the renewal is only in the credential: replace it only if the original token has changed.
        let again = move || {
            let given = (this.given)().ok()?;
            let mut last = last.lock();
            if memory && *last == given {
                return None;
            }
            *last = given;
            this.load().ok()
        };
        Ok(Credential::from_place(first, Box::new(again)))
    }
}

/// Path of the file in `folder` for the renewed token of `server`.
#[must_use]
pub fn kept_in(folder: &Path, server: &str) -> PathBuf {
    let name = blake3::hash(server.as_bytes()).to_hex();
    folder.join(format!("token-{}.json", &name[..16]))
}

fn name_of(token: &JoinToken) -> String {
    blake3::hash(token.to_string().as_bytes()).to_hex().to_string()
}

/// State of the token for a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenStatus {
    /// Name of the server.
    pub server: String,
    /// When it expires, as in RFC 3339; `None` until the server has reported it.
    #[serde(default)]
    pub expires: Option<String>,
    /// `unknown`, `good`, `ending` (within a day, and it was not or can't be renewed), `expired` or `rejected`.
    pub state: String,
    /// Why it could not be renewed, or why it is rejected.
    #[serde(default)]
    pub why: Option<String>,
}

/// A change in the state of a token, to be reported once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// It was renewed or replaced, and is valid until this time.
    Good(String),
    /// It expires within a day: when, and why it was not renewed.
    Ending(String),
    /// It has expired at this time.
    Expired(String),
    /// The server rejects it, for this reason.
    Rejected(String),
}

/// What is known about a token, and what to do about it. Times are seconds since 1970 by this machine's clock.
#[derive(Default)]
struct Course {
    /// The token that the other fields describe.
    token: Option<JoinToken>,
    term: Option<Term>,
    rejected: Option<String>,
    /// Why the last renewal failed.
    failed: Option<String>,
    /// The last of [`News`] that was reported, so that each is reported once.
    reported: Reported,
}

/// The kinds of [`News`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Reported {
    #[default]
    Nothing,
    Ending,
    Expired,
    Rejected,
}

/// The next request to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Nothing,
    Term,
    Renewal,
}

impl Course {
    fn ask(&self, now: u64) -> Ask {
        match self.term {
            None => Ask::Term,
            Some(Term { lasts: None, .. }) => Ask::Nothing,
            Some(term) => match term.standing(now) {
                Standing::Good | Standing::Over => Ask::Nothing,
                Standing::Due | Standing::Ending => Ask::Renewal,
            },
        }
    }

    /// Sets the token. If it is another one, everything known about the old one is dropped.
    fn holds(&mut self, token: &JoinToken) {
        if self.token.as_ref() != Some(token) {
            *self = Self { token: Some(token.clone()), reported: self.reported, ..Self::default() };
        }
    }

    fn learned(&mut self, term: Term) {
        (self.term, self.rejected, self.failed) = (Some(term), None, None);
    }

    /// The server rejected the token.
    fn rejected(&mut self, why: String) {
        self.rejected = Some(why);
    }

    /// The change to report at `now`; each state is reported once.
    fn news(&mut self, now: u64) -> Option<News> {
        let standing = self.term.map(|term| (term.standing(now), clock::rfc3339(term.expires)));
        let (reported, news) = match (&self.rejected, standing) {
            (_, Some((Standing::Over, at))) => (Reported::Expired, News::Expired(at)),
            (Some(why), _) => (Reported::Rejected, News::Rejected(why.clone())),
            (None, Some((Standing::Ending, at))) => {
                let why = self.failed.as_ref().map(|why| format!("{at}: {why}"));
                (Reported::Ending, News::Ending(why.unwrap_or(at)))
            }
            (None, Some((_, at))) => (Reported::Nothing, News::Good(at)),
            // The server has not answered yet.
            (None, None) => return None,
        };
        (std::mem::replace(&mut self.reported, reported) != reported).then_some(news)
    }

    /// Time until the next check.
    fn pause(&self, now: u64) -> Duration {
        match self.term {
            Some(term) if term.standing(now) == Standing::Over => LOOK_ENDED,
            _ if self.rejected.is_some() => LOOK_REJECTED,
            None => LOOK_REJECTED,
            Some(Term { lasts: Some(lasts), .. }) => {
                Duration::from_millis(lasts.saturating_mul(1000) / LOOKS).clamp(LOOK_MIN, LOOK_MAX)
            }
            Some(Term { expires, lasts: None }) => {
                Duration::from_secs(expires.saturating_sub(now)).clamp(LOOK_ENDED, LOOK_MAX)
            }
        }
    }

    fn status(&self, server: &str, now: u64) -> TokenStatus {
        let state = match (&self.rejected, self.term.map(|term| term.standing(now))) {
            (_, Some(Standing::Over)) => "expired",
            (Some(_), _) => "rejected",
            (None, Some(Standing::Ending)) => "ending",
            (None, Some(Standing::Good | Standing::Due)) => "good",
            (None, None) => "unknown",
        };
        TokenStatus {
            server: server.to_owned(),
            expires: self.term.map(|term| clock::rfc3339(term.expires)),
            state: state.to_owned(),
            why: self.rejected.clone().or_else(|| self.failed.clone()),
        }
    }
}

/// Receives the name of a server and the change of its token. Called from the thread of [`Keeper`].
pub type Tell = Box<dyn Fn(&str, News) + Send>;

/// A thread that renews tokens in time, until this is dropped.
pub struct Keeper {
    shared: Arc<Shared>,
}

struct Shared {
    servers: Vec<Tended>,
    ended: Mutex<bool>,
    changed: Condvar,
}

/// A server and its token.
struct Tended {
    name: String,
    client: Arc<Client>,
    place: Place,
    course: Mutex<Course>,
}

impl Keeper {
    /// Starts to renew the tokens of `clients`. Each entry has the server's name, a client with the credential of its
    /// token, and the place of the token. The clients should time out soon, since the thread serves one after the
    /// other and retries failed requests.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn start(clients: Vec<(String, Arc<Client>, Place)>, tell: Tell) -> Result<Self> {
        let server = |(name, client, place)| Tended { name, client, place, course: Mutex::default() };
        let servers = clients.into_iter().map(server).collect();
        let shared = Arc::new(Shared { servers, ended: Mutex::new(false), changed: Condvar::new() });
        let works = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("tokens".into()).spawn(move || works.run(&tell));
        thread.map_err(|error| Error::from_source(ErrorKind::Io, "start a thread for tokens", error))?;
        Ok(Self { shared })
    }

    /// The state of each token.
    #[must_use]
    pub fn status(&self) -> Vec<TokenStatus> {
        let now = clock::unix_seconds();
        self.shared.servers.iter().map(|server| server.course().status(&server.name, now)).collect()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Not joined: the thread may be waiting for a server that does not answer. It ends after that request.
        *self.shared.ended.lock() = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn run(&self, tell: &Tell) {
        if self.servers.is_empty() {
            return;
        }
        loop {
            for server in &self.servers {
                server.look(clock::unix_seconds());
                let news = server.course().news(clock::unix_seconds());
                news.into_iter().for_each(|news| tell(&server.name, news));
            }
            let now = clock::unix_seconds();
            let pause = self.servers.iter().map(|server| server.course().pause(now)).min();
            let pause = pause.unwrap_or(LOOK_MAX);
            let mut ended = self.ended.lock();
            self.changed.wait_while_for(&mut ended, |ended| !*ended, pause);
            if *ended {
                return;
            }
        }
    }
}

impl Tended {
    fn course(&self) -> parking_lot::MutexGuard<'_, Course> {
        self.course.lock()
    }

    fn look(&self, now: u64) {
        // The token file may have changed. Clients also reload by themselves when a server rejects their token.
        self.client.credential().reload();
        self.course().holds(&self.client.credential().token());
        // The lock is not held during requests.
        let ask = self.course().ask(now);
        match ask {
            Ask::Nothing => {}
            Ask::Term => self.learn(now),
            Ask::Renewal => self.renew(now),
        }
    }

    fn learn(&self, now: u64) {
        match self.client.token_grant() {
            Ok(grant) => {
                let term =
                    Term { expires: now.saturating_add(grant.left_seconds), lasts: grant.lasts_seconds };
                self.course().learned(term);
                if term.standing(now) != Standing::Good && term.lasts.is_some() {
                    self.renew(now);
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Untrusted) => {
                self.course().rejected(base::chain(&error));
            }
            // The server cannot be reached, or is too old for this request.
            Err(_) => {}
        }
    }

    fn renew(&self, now: u64) {
        let renewed = self.client.renew_token().map_err(|error| base::chain(&error));
        let renewed = renewed.and_then(|(token, grant)| {
            // A renewal that cannot be stored would be lost with this process, so that counts as a failure.
            let kept = self.place.keep(&token).map_err(|error| base::chain(&error));
            self.course().token = Some(token.clone());
            self.client.credential().replace(token);
            let term = Term { expires: now.saturating_add(grant.left_seconds), lasts: grant.lasts_seconds };
            kept.map(|()| term)
        });
        let mut course = self.course();
        match renewed {
            Ok(term) => course.learned(term),
            Err(why) => course.failed = Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(secret: &str) -> JoinToken {
        JoinToken { fingerprint: None, secret: secret.parse().unwrap() }
    }

    #[test]
    fn what_was_renewed_counts_until_another_token_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("given");
        std::fs::write(&file, token("one").to_string()).unwrap();
        let read = move || Ok(std::fs::read_to_string(&file).unwrap().parse().unwrap());
        let kept = folder.path().join("kept");
        let place = Place { given: Arc::new(read), kept: Some(kept.clone()) };
        let credential = place.credential().unwrap();
        assert_eq!(credential.token(), token("one"));
        place.keep(&token("renewed")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&kept).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(place.load().unwrap(), token("renewed"));
        assert!(credential.reload() && credential.token() == token("renewed"));
        std::fs::write(folder.path().join("given"), token("two").to_string()).unwrap();
        assert!(credential.reload() && !credential.reload());
        assert_eq!((credential.token(), place.load().unwrap()), (token("two"), token("two")));
        // Without a file, a client keeps the renewal in memory.
        let forgets = Place { kept: None, ..place };
        let credential = forgets.credential().unwrap();
        assert!(credential.replace(token("renewed")) && !credential.reload());
        assert_eq!(credential.token(), token("renewed"));
        std::fs::write(folder.path().join("given"), token("three").to_string()).unwrap();
        assert!(credential.reload() && credential.token() == token("three"));
    }

    #[test]
    fn a_token_is_told_of_once_for_each_turn_of_its_life() {
        let (day, begins) = (24 * 3600, 1_000_000_000);
        let mut course = Course::default();
        course.holds(&token("one"));
        assert_eq!((course.ask(begins), course.news(begins)), (Ask::Term, None));
        course.learned(Term { expires: begins + 30 * day, lasts: Some(30 * day) });
        assert_eq!((course.ask(begins), course.news(begins)), (Ask::Nothing, None));
        assert_eq!(course.ask(begins + 20 * day), Ask::Renewal);
        course.failed = Some("nobody there".into());
        assert_eq!(course.news(begins + 28 * day), None, "there is time yet");
        let late = begins + 29 * day;
        assert_eq!(course.ask(late), Ask::Renewal);
        let news = course.news(late);
        assert!(matches!(&news, Some(News::Ending(why)) if why.contains("nobody there")), "{news:?}");
        assert_eq!((course.news(late + 60), course.status("s", late).state.as_str()), (None, "ending"));
        let over = begins + 30 * day;
        assert!(matches!(course.news(over), Some(News::Expired(_))));
        assert_eq!((course.ask(over), course.status("s", over).state.as_str()), (Ask::Nothing, "expired"));
        // The user provides another token.
        assert_eq!(course.pause(over), LOOK_ENDED);
        course.holds(&token("one"));
        assert_eq!(course.ask(over), Ask::Nothing, "it is the same still");
        course.holds(&token("two"));
        assert_eq!((course.ask(over), course.news(over)), (Ask::Term, None));
        course.learned(Term { expires: over + day, lasts: None });
        assert!(matches!(course.news(over - 1), Some(News::Good(_))));
        assert!(
            matches!(course.news(over), Some(News::Ending(_))),
            "one that can't be renewed is told of, too"
        );
        assert_eq!(course.ask(over), Ask::Nothing);
        course.holds(&token("three"));
        course.rejected("the token is not from this server".into());
        assert!(matches!(course.news(over), Some(News::Rejected(_))));
        assert_eq!(course.status("s", over).state, "rejected");
    }
}
