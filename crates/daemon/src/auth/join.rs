//! The join token that a server publishes. The server makes one when it starts and replaces it before it expires, so
//! that a server that runs for months always has a valid one.

use std::path::PathBuf;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use net::token::{Fingerprint, JoinToken, Standing};
use parking_lot::{Mutex, MutexGuard};

use crate::auth::authority::{Authority, Claims, Right};
use crate::auth::claims::TokenId;
use crate::clock;
use crate::event::Event;
use crate::private_file::write_private;

/// Seconds until a failed write of the token file is retried.
const AGAIN_SECONDS: u64 = 60;

/// The current join token and the file that publishes it. Times are seconds since 1970.
pub(crate) struct Join {
    fingerprint: Option<Fingerprint>,
    lifetime: Duration,
    /// The file that the token is written to; `None`: the token is only shown.
    file: Option<PathBuf>,
    held: Mutex<Held>,
}

struct Held {
    token: JoinToken,
    claims: Claims,
    /// The token is not replaced before this time.
    next: u64,
}

impl Join {
    /// Makes a token that grants reading all images for `lifetime` from `now` on, and writes it to `file`.
    ///
    /// # Errors
    /// `Io` if it can't be written.
    pub(crate) fn begin(
        authority: &Authority,
        fingerprint: Option<Fingerprint>,
        lifetime: Duration,
        file: Option<PathBuf>,
        now: u64,
    ) -> Result<Self> {
        authority.forget_expired(now);
        let (token, claims) = mint(authority, fingerprint, lifetime, now)?;
        let this = Self { fingerprint, lifetime, file, held: Mutex::new(Held { token, claims, next: 0 }) };
        this.write(&this.token())?;
        Ok(this)
    }

    /// The current token.
    pub(crate) fn token(&self) -> JoinToken {
        self.lock().token.clone()
    }

    /// When the current token expires.
    pub(crate) fn expires(&self) -> u64 {
        self.lock().claims.expires
    }

    /// Replaces the token in the file when it is about to expire. Must be called regularly. Returns the event to log;
    /// `None` if nothing was to be done or there is no file.
    pub(crate) fn tend(&self, authority: &Authority, now: u64) -> Option<Event> {
        let path = self.file.clone()?;
        {
            let mut held = self.lock();
            if held.claims.term().standing(now) == Standing::Good || now < held.next {
                return None;
            }
            held.next = now + AGAIN_SECONDS.min(self.lifetime.as_secs() / 10);
        }
        let made = mint(authority, self.fingerprint, self.lifetime, now);
        let written = made.and_then(|(token, claims)| self.write(&token).map(|()| (token, claims)));
        Some(match written {
            Ok((token, claims)) => {
                let expires = clock::rfc3339(claims.expires);
                let mut held = self.lock();
                (held.token, held.claims) = (token, claims);
                Event::TokenWritten { path, expires }
            }
            Err(error) => Event::TokenNotWritten { error: base::chain(&error) },
        })
    }

    fn write(&self, token: &JoinToken) -> Result<()> {
        match &self.file {
            Some(path) => write_private(path, &format!("{token}\n")),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }
}

fn mint(
    authority: &Authority,
    fingerprint: Option<Fingerprint>,
    lifetime: Duration,
    now: u64,
) -> Result<(JoinToken, Claims)> {
    let lasts = lifetime.as_secs();
    let images = vec!["*".to_owned()];
    let claims = Claims {
        images,
        right: Right::Read,
        expires: now.saturating_add(lasts),
        lasts: Some(lasts),
        id: Some(TokenId::draw()?),
        brief: false,
    };
    authority.record_made(&claims, "join token of `diskcast serve`", now)?;
    let secret = authority.mint(&claims);
    let secret = secret.ok_or_else(|| Error::new(ErrorKind::Refused, "mint the join token"))?;
    Ok((JoinToken { fingerprint, secret }, claims))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_server_that_runs_for_months_never_holds_a_token_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (path, authority) = (folder.path().join("join.token"), Authority::new(&[7; 32]));
        let (day, begins) = (24 * 3600, 1_000_000_000);
        let lifetime = Duration::from_secs(30 * day);
        let join = Join::begin(&authority, None, lifetime, Some(path.clone()), begins).unwrap();
        let mut written = 0;
        for hour in 0..24 * 365 {
            let now = begins + hour * 3600;
            let event = join.tend(&authority, now);
            written += u32::from(matches!(event, Some(Event::TokenWritten { .. })));
            let text = std::fs::read_to_string(&path).unwrap();
            let token: JoinToken = text.parse().unwrap();
            let left = authority.check(token.secret.expose(), now).unwrap().expires - now;
            assert!(left > 9 * day && token == join.token(), "hour {hour}");
        }
        assert_eq!(written, 18, "each after two thirds of its life");
        // If the file cannot be written, this is reported and retried.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let later = begins + 400 * day;
        let failed = join.tend(&authority, later);
        assert!(matches!(failed, Some(Event::TokenNotWritten { .. })), "{failed:?}");
        assert!(join.tend(&authority, later + 1).is_none());
        std::fs::remove_dir(&path).unwrap();
        assert!(matches!(join.tend(&authority, later + 60), Some(Event::TokenWritten { .. })));
    }
}
