//! The handshake (fixed newstyle negotiation), from the greeting to the choice of a disk. Bytes in, bytes out, no
//! I/O.

use std::sync::Arc;

use base::wire::{Reader, Truncated};
use base::{Error, ErrorKind, Result};

use crate::Served;
use crate::nbd::context::Context;
use crate::nbd::exports::{Export, Exports, NAME_BYTES_MAX};
use crate::nbd::request::{PAYLOAD_BYTES_MAX, Rules};
use crate::nbd::wire::{
    GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, answer, flag, handshake, info, option, take_counted,
    take_u16, take_u32, take_u64,
};

/// Maximum length in bytes of an option with its head that is parsed. A buffer of this size can always hold the next
/// step.
pub const OPTION_BYTES_MAX: usize = OPTION_HEAD_BYTES + (16 << 10);
const OPTION_HEAD_BYTES: usize = 16;
/// Maximum number of options in one handshake; clients need about six.
const OPTIONS_MAX: u32 = 500;
/// Zeros after the reply to `EXPORT_NAME`, unless the client has declined them.
const ANCIENT_ZEROES: [u8; 124] = [0; 124];
/// The sector size in bytes that clients assume if they were not told.
const DEFAULT_SECTOR_BYTES: u32 = 512;

/// The first bytes that the server sends.
#[must_use]
pub fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&GREETING_MAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes[16..].copy_from_slice(&(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
    bytes
}

/// The state of TLS on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privacy {
    /// The server has no TLS.
    Plain,
    /// The client may ask for it.
    Offered,
    /// The client gets no information without it.
    Required,
    /// TLS is active.
    Running,
}

/// The next step after some bytes were parsed.
pub enum Step {
    /// Receive more bytes; none were consumed.
    Receive,
    /// Send the output and continue.
    Continue,
    /// Send the output, then start TLS and continue. Bytes received after the option are an attack and must be
    /// rejected.
    StartTls,
    /// Send the output: the handshake is over, and requests follow.
    Serve(Session),
    /// Send the output: the client leaves.
    End,
}

/// The result of a handshake.
#[derive(Clone)]
pub struct Session {
    /// The name under which the disk was requested.
    pub name: String,
    /// The disk.
    pub disk: Arc<dyn Served>,
    /// The rules for requests.
    pub rules: Rules,
    /// The contexts of block status replies.
    pub contexts: Vec<Context>,
}

/// One client's handshake.
pub struct Negotiation<'a> {
    exports: &'a dyn Exports,
    privacy: Privacy,
    greeted: bool,
    no_zeroes: bool,
    structured: bool,
    /// The chosen contexts, which are valid for the export of this name.
    contexts: (String, Vec<Context>),
    options_left: u32,
    /// Bytes of a too long option that must still be skipped.
    skip: u32,
}

impl<'a> Negotiation<'a> {
    /// A handshake that begins with the client's flags.
    #[must_use]
    pub fn new(exports: &'a dyn Exports, privacy: Privacy) -> Self {
        Self {
            exports,
            privacy,
            greeted: false,
            no_zeroes: false,
            structured: false,
            contexts: (String::new(), Vec::new()),
            options_left: OPTIONS_MAX,
            skip: 0,
        }
    }

    /// Parses bytes from the front of `input` and appends the reply to `output`. Returns how many bytes it consumed,
    /// and the next step. `Invalid` if the client does not speak NBD, `Refused` if the protocol has no way to reply
    /// with an error.
    pub fn advance(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<(usize, Step)> {
        if self.skip > 0 && !input.is_empty() {
            let passed = u32::try_from(input.len()).unwrap_or(u32::MAX).min(self.skip);
            self.skip -= passed;
            return Ok((passed as usize, Step::Continue));
        }
        if !self.greeted {
            return self.greet(input);
        }
        let Some((head, rest)) = input.split_first_chunk::<OPTION_HEAD_BYTES>() else {
            return Ok((0, Step::Receive));
        };
        let (option, length) = option_head(head)?;
        let answers = &mut Answers { option, output };
        if length as usize > OPTION_BYTES_MAX - OPTION_HEAD_BYTES {
            if option == option::EXPORT_NAME {
                return Err(Error::new(ErrorKind::Invalid, format!("a name of {length} bytes for a disk")));
            }
            self.skip = length;
            answers.refuse(answer::ERR_TOO_BIG, "the option is longer than any that this server knows");
            return Ok((OPTION_HEAD_BYTES, Step::Continue));
        }
        let Some(body) = rest.get(..length as usize) else { return Ok((0, Step::Receive)) };
        self.options_left = self.options_left.checked_sub(1).ok_or_else(|| {
            Error::new(ErrorKind::Refused, format!("more than {OPTIONS_MAX} options in a handshake"))
        })?;
        Ok((OPTION_HEAD_BYTES + body.len(), self.answer(option, body, answers)?))
    }

    fn greet(&mut self, input: &[u8]) -> Result<(usize, Step)> {
        let Some(flags) = input.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)) else {
            return Ok((0, Step::Receive));
        };
        let (fixed, no_zeroes) = (u32::from(handshake::FIXED_NEWSTYLE), u32::from(handshake::NO_ZEROES));
        if flags & !(fixed | no_zeroes) != 0 || flags & fixed == 0 {
            let text = format!("an NBD client answered the greeting with the flags {flags:#x}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.greeted = true;
        self.no_zeroes = flags & no_zeroes != 0;
        Ok((4, Step::Continue))
    }

    fn answer(&mut self, option: u32, body: &[u8], answers: &mut Answers<'_>) -> Result<Step> {
        if self.privacy == Privacy::Required && ![option::STARTTLS, option::ABORT].contains(&option) {
            if option == option::EXPORT_NAME {
                return Err(Error::new(ErrorKind::Refused, "an NBD client asked for a disk without TLS"));
            }
            answers.refuse(answer::ERR_TLS_REQD, "this server requires TLS first");
            return Ok(Step::Continue);
        }
        let answered = match option {
            option::EXPORT_NAME => return self.export_name(body, answers.output),
            option::ABORT => {
                answers.acknowledge();
                return Ok(Step::End);
            }
            option::LIST => self.list(body, answers),
            option::STARTTLS => self.start_tls(body, answers),
            option::INFO | option::GO => self.go(body, answers),
            option::STRUCTURED_REPLY => self.structured_reply(body, answers),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(body, answers),
            _ => {
                answers.refuse(answer::ERR_UNSUP, "this server does not know the option");
                Ok(Step::Continue)
            }
        };
        Ok(answered.unwrap_or_else(|Truncated| {
            answers.refuse(answer::ERR_INVALID, "the option's fields do not fit its length");
            Step::Continue
        }))
    }

    fn list(&self, body: &[u8], answers: &mut Answers<'_>) -> Answered {
        if !body.is_empty() {
            return Err(Truncated);
        }
        for (name, description) in self.exports.list() {
            let length = u32::try_from(name.len()).expect("names are short").to_be_bytes();
            answers.put(answer::SERVER, &[&length, name.as_bytes(), description.as_bytes()]);
        }
        answers.acknowledge();
        Ok(Step::Continue)
    }

    fn start_tls(&mut self, body: &[u8], answers: &mut Answers<'_>) -> Answered {
        if !body.is_empty() {
            return Err(Truncated);
        }
        match self.privacy {
            Privacy::Plain => answers.refuse(answer::ERR_POLICY, "this server has no TLS"),
            Privacy::Running => answers.refuse(answer::ERR_INVALID, "TLS is already active"),
            Privacy::Offered | Privacy::Required => {
                answers.acknowledge();
                // An attacker may have sent the options before TLS: forget them.
                (self.structured, self.contexts) = (false, (String::new(), Vec::new()));
                self.privacy = Privacy::Running;
                return Ok(Step::StartTls);
            }
        }
        Ok(Step::Continue)
    }

    fn structured_reply(&mut self, body: &[u8], answers: &mut Answers<'_>) -> Answered {
        if !body.is_empty() {
            return Err(Truncated);
        }
        self.structured = true;
        answers.acknowledge();
        Ok(Step::Continue)
    }

    /// `LIST_META_CONTEXT` and `SET_META_CONTEXT`: a name, then queries, each with its length.
    fn meta_context(&mut self, body: &[u8], answers: &mut Answers<'_>) -> Answered {
        let reader = &mut Reader::new(body);
        let name = text(take_counted(reader)?)?;
        let queries = (0..take_u32(reader)?).map(|_| text(take_counted(reader)?));
        let queries = queries.collect::<std::result::Result<Vec<_>, Truncated>>()?;
        if reader.remaining() > 0 {
            return Err(Truncated);
        }
        let setting = answers.option == option::SET_META_CONTEXT;
        if setting {
            self.contexts = (String::new(), Vec::new());
        }
        if !self.structured {
            answers.refuse(answer::ERR_INVALID, "metadata contexts need structured replies");
            return Ok(Step::Continue);
        }
        if let Err(error) = self.exports.find(name) {
            answers.refuse(refusal(error.kind()), &base::chain(&error));
            return Ok(Step::Continue);
        }
        let all = !setting && queries.is_empty();
        let fits = |context: &Context, query: &&str| {
            context.name() == *query
                || (!setting && query.ends_with(':') && context.name().starts_with(query))
        };
        let chosen = Context::ALL
            .into_iter()
            .filter(|context| all || queries.iter().any(|query| fits(context, query)));
        let chosen: Vec<_> = chosen.collect();
        for context in &chosen {
            let id = if setting { context.id() } else { 0 };
            answers.put(answer::META_CONTEXT, &[&id.to_be_bytes(), context.name().as_bytes()]);
        }
        if setting {
            self.contexts = (name.to_owned(), chosen);
        }
        answers.acknowledge();
        Ok(Step::Continue)
    }

    /// `INFO` and `GO`: a name, then the kinds of information that the client wants.
    fn go(&mut self, body: &[u8], answers: &mut Answers<'_>) -> Answered {
        let reader = &mut Reader::new(body);
        let name = text(take_counted(reader)?)?;
        let wanted = (0..take_u16(reader)?).map(|_| take_u16(reader));
        let wanted = wanted.collect::<std::result::Result<Vec<_>, Truncated>>()?;
        if reader.remaining() > 0 {
            return Err(Truncated);
        }
        let export = match self.exports.find(name) {
            Ok(export) => export,
            Err(error) => {
                answers.refuse(refusal(error.kind()), &base::chain(&error));
                return Ok(Step::Continue);
            }
        };
        let session = self.session(name, &export);
        tell(&session, &export, &wanted, answers);
        let knows_sectors = wanted.contains(&info::BLOCK_SIZE);
        if !knows_sectors && session.rules.sector_bytes > DEFAULT_SECTOR_BYTES {
            answers.refuse(answer::ERR_BLOCK_SIZE_REQD, "this disk has larger sectors: ask for block sizes");
            return Ok(Step::Continue);
        }
        answers.acknowledge();
        Ok(if answers.option == option::GO { Step::Serve(session) } else { Step::Continue })
    }

    /// The oldest way to choose a disk. The protocol has no error reply for it.
    fn export_name(&mut self, body: &[u8], output: &mut Vec<u8>) -> Result<Step> {
        let name =
            text(body).map_err(|_| Error::new(ErrorKind::Invalid, "the name of a disk is not valid text"))?;
        let export = self.exports.find(name)?;
        let session = self.session(name, &export);
        if session.rules.sector_bytes > DEFAULT_SECTOR_BYTES {
            let text = format!(
                "disk `{name}` has sectors of {} bytes, which an old NBD client cannot know",
                session.rules.sector_bytes
            );
            return Err(Error::new(ErrorKind::Refused, text));
        }
        output.extend(session.rules.size_bytes.to_be_bytes());
        output.extend(flags(&session.rules).to_be_bytes());
        if !self.no_zeroes {
            output.extend(ANCIENT_ZEROES);
        }
        Ok(Step::Serve(session))
    }

    fn session(&self, name: &str, export: &Export) -> Session {
        let geometry = export.disk.geometry();
        let contexts = if self.contexts.0 == name { self.contexts.1.clone() } else { Vec::new() };
        let rules = Rules {
            size_bytes: geometry.size_bytes,
            sector_bytes: geometry.logical_sector_bytes,
            read_only: export.disk.is_read_only(),
            structured: self.structured,
            contexts: !contexts.is_empty(),
            fast_zero: export.disk.zeroes_fast(),
        };
        Session { name: name.to_owned(), disk: Arc::clone(&export.disk), rules, contexts }
    }
}

/// `Truncated` if an option's fields do not fit its length, or are not valid text.
type Answered = std::result::Result<Step, Truncated>;

/// The replies to one option.
struct Answers<'a> {
    option: u32,
    output: &'a mut Vec<u8>,
}

impl Answers<'_> {
    fn put(&mut self, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.output.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        self.output.extend(self.option.to_be_bytes());
        self.output.extend(kind.to_be_bytes());
        self.output.extend(u32::try_from(length).expect("answers are short").to_be_bytes());
        parts.iter().for_each(|part| self.output.extend(*part));
    }

    fn acknowledge(&mut self) {
        self.put(answer::ACK, &[]);
    }

    fn refuse(&mut self, kind: u32, words: &str) {
        self.put(kind, &[&words.as_bytes()[..words.floor_char_boundary(NAME_BYTES_MAX)]]);
    }
}

/// The option's number and the bytes that follow its head.
fn option_head(head: &[u8; OPTION_HEAD_BYTES]) -> Result<(u32, u32)> {
    let reader = &mut Reader::new(head);
    let mut fields = || Ok::<_, Truncated>((take_u64(reader)?, take_u32(reader)?, take_u32(reader)?));
    let (magic, option, length) = fields().expect("a head has all its fields");
    if magic != OPTION_MAGIC {
        let text = format!("an NBD client sent {magic:#018x} where an option begins");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok((option, length))
}

fn text(bytes: &[u8]) -> std::result::Result<&str, Truncated> {
    let text = std::str::from_utf8(bytes).map_err(|_| Truncated)?;
    if text.len() <= NAME_BYTES_MAX { Ok(text) } else { Err(Truncated) }
}

fn refusal(kind: ErrorKind) -> u32 {
    if kind == ErrorKind::NotFound { answer::ERR_UNKNOWN } else { answer::ERR_POLICY }
}

/// Appends information about a disk: always its size, flags and block sizes (which cost nothing), names if wanted.
fn tell(session: &Session, export: &Export, wanted: &[u16], answers: &mut Answers<'_>) {
    let rules = &session.rules;
    let (size, flags) = (rules.size_bytes.to_be_bytes(), flags(rules).to_be_bytes());
    answers.put(answer::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
    if wanted.contains(&info::NAME) {
        answers.put(answer::INFO, &[&info::NAME.to_be_bytes(), session.name.as_bytes()]);
    }
    if wanted.contains(&info::DESCRIPTION) {
        answers.put(answer::INFO, &[&info::DESCRIPTION.to_be_bytes(), export.description.as_bytes()]);
    }
    let preferred = export.disk.geometry().physical_sector_bytes.max(4096);
    let sizes = [rules.sector_bytes, preferred, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
    answers.put(answer::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()]);
}

fn flags(rules: &Rules) -> u16 {
    let always =
        flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
    let writing = match (rules.read_only, rules.fast_zero) {
        (true, _) => flag::READ_ONLY,
        (false, true) => flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO,
        (false, false) => flag::SEND_TRIM | flag::SEND_WRITE_ZEROES,
    };
    always | writing | if rules.structured { flag::SEND_DF } else { 0 }
}

#[cfg(test)]
mod tests {
    use disk::Geometry;

    use super::*;
    use crate::nbd::exports::ExportTable;
    use crate::nbd::tests::Fake;

    const CLIENT_FLAGS: [u8; 4] = [0, 0, 0, 3];

    fn table() -> ExportTable {
        let table = ExportTable::default();
        for (name, sector_bytes) in [("small", 512), ("large", 4096)] {
            let disk = Arc::new(Fake(Geometry {
                size_bytes: 1 << 20,
                logical_sector_bytes: sector_bytes,
                physical_sector_bytes: 4096,
            }));
            table.insert(name, Export { disk, description: "a disk".into() }).unwrap();
        }
        table
    }

    fn encode(option: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &length, body].concat()
    }

    fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
        let mut body = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
        body.extend(name.as_bytes());
        body.extend(u16::try_from(wanted.len()).unwrap().to_be_bytes());
        wanted.iter().for_each(|kind| body.extend(kind.to_be_bytes()));
        body
    }

    fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
        let counted =
            |text: &str| [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat();
        let count = u32::try_from(queries.len()).unwrap().to_be_bytes().to_vec();
        [counted(name), count, queries.iter().flat_map(|query| counted(query)).collect()].concat()
    }

    /// A client after the greeting. Its methods send an option and return the kinds of the replies.
    struct Talk<'a>(Negotiation<'a>);

    impl<'a> Talk<'a> {
        fn begin(exports: &'a dyn Exports, privacy: Privacy) -> Self {
            let mut negotiation = Negotiation::new(exports, privacy);
            let (taken, _) = negotiation.advance(&CLIENT_FLAGS, &mut Vec::new()).unwrap();
            assert_eq!(taken, 4);
            Self(negotiation)
        }

        fn say(&mut self, option: u32, body: &[u8]) -> (Vec<u32>, Vec<u8>, Step) {
            let (mut output, bytes) = (Vec::new(), encode(option, body));
            let (taken, step) = self.0.advance(&bytes, &mut output).unwrap();
            assert_eq!(taken, bytes.len());
            let (mut kinds, mut rest) = (Vec::new(), &output[..]);
            while let Some((head, behind)) = rest.split_first_chunk::<20>() {
                kinds.push(u32::from_be_bytes(head[12..16].try_into().unwrap()));
                rest = &behind[u32::from_be_bytes(head[16..].try_into().unwrap()) as usize..];
            }
            (kinds, output, step)
        }

        fn kinds(&mut self, option: u32, body: &[u8]) -> Vec<u32> {
            self.say(option, body).0
        }
    }

    #[test]
    fn a_client_gets_the_disk_it_asks_for() {
        let table = table();
        let mut talk = Talk::begin(&table, Privacy::Plain);
        assert_eq!(talk.kinds(option::LIST, &[]), [answer::SERVER, answer::SERVER, answer::ACK]);
        assert_eq!(talk.kinds(99, &[]), [answer::ERR_UNSUP]);
        assert_eq!(talk.kinds(option::STRUCTURED_REPLY, &[]), [answer::ACK]);
        let query = contexts("large", &["base:allocation", "other:thing"]);
        assert_eq!(talk.kinds(option::SET_META_CONTEXT, &query), [answer::META_CONTEXT, answer::ACK]);
        let wanted = go("large", &[info::BLOCK_SIZE, info::NAME, info::DESCRIPTION]);
        assert_eq!(
            talk.kinds(option::INFO, &wanted),
            [answer::INFO, answer::INFO, answer::INFO, answer::INFO, answer::ACK]
        );
        let (_, _, step) = talk.say(option::GO, &wanted);
        let Step::Serve(session) = step else { panic!("no disk") };
        assert_eq!((session.name.as_str(), session.contexts), ("large", vec![Context::Allocation]));
        assert!(session.rules.structured && session.rules.contexts && session.rules.sector_bytes == 4096);
    }

    #[test]
    fn contexts_are_for_one_disk_and_need_structured_replies() {
        let table = table();
        let mut talk = Talk::begin(&table, Privacy::Plain);
        let query = contexts("large", &["base:allocation"]);
        assert_eq!(talk.kinds(option::SET_META_CONTEXT, &query), [answer::ERR_INVALID]);
        talk.kinds(option::STRUCTURED_REPLY, &[]);
        assert_eq!(talk.kinds(option::SET_META_CONTEXT, &query).len(), 2);
        assert_eq!(talk.kinds(option::LIST_META_CONTEXT, &contexts("small", &[])).len(), 4);
        assert_eq!(talk.kinds(option::LIST_META_CONTEXT, &contexts("small", &["diskcast:"])).len(), 3);
        assert_eq!(talk.kinds(option::SET_META_CONTEXT, &contexts("none", &[])), [answer::ERR_UNKNOWN]);
        assert_eq!(talk.kinds(option::SET_META_CONTEXT, &query).len(), 2);
        let Step::Serve(session) = talk.say(option::GO, &go("small", &[])).2 else { panic!("no disk") };
        assert!(session.contexts.is_empty() && !session.rules.contexts);
    }

    #[test]
    fn who_does_not_know_the_sectors_does_not_get_large_ones() {
        let table = table();
        let mut talk = Talk::begin(&table, Privacy::Plain);
        assert_eq!(talk.kinds(option::GO, &go("large", &[])).last(), Some(&answer::ERR_BLOCK_SIZE_REQD));
        let bytes = encode(option::EXPORT_NAME, b"large");
        assert!(
            matches!(talk.0.advance(&bytes, &mut Vec::new()), Err(error) if error.kind() == ErrorKind::Refused)
        );
        let mut output = Vec::new();
        let (_, step) = talk.0.advance(&encode(option::EXPORT_NAME, b"small"), &mut output).unwrap();
        assert!(matches!(step, Step::Serve(_)) && output.len() == 10);
    }

    #[test]
    fn without_tls_a_private_server_tells_nothing() {
        let table = table();
        let mut talk = Talk::begin(&table, Privacy::Required);
        for option in [option::LIST, option::GO, option::STRUCTURED_REPLY, 99] {
            assert_eq!(talk.kinds(option, &go("small", &[])), [answer::ERR_TLS_REQD]);
        }
        assert!(talk.0.advance(&encode(option::EXPORT_NAME, b"small"), &mut Vec::new()).is_err());
        assert!(matches!(talk.say(option::STARTTLS, &[]).2, Step::StartTls));
        assert_eq!(talk.kinds(option::STARTTLS, &[]), [answer::ERR_INVALID]);
        assert_eq!(talk.kinds(option::LIST, &[]).last(), Some(&answer::ACK));
        let mut plain = Talk::begin(&table, Privacy::Plain);
        assert_eq!(plain.kinds(option::STARTTLS, &[]), [answer::ERR_POLICY]);
    }

    #[test]
    fn what_was_said_before_tls_is_forgotten() {
        let table = table();
        let mut talk = Talk::begin(&table, Privacy::Offered);
        talk.kinds(option::STRUCTURED_REPLY, &[]);
        talk.kinds(option::SET_META_CONTEXT, &contexts("small", &["base:allocation"]));
        assert!(matches!(talk.say(option::STARTTLS, &[]).2, Step::StartTls));
        let Step::Serve(session) = talk.say(option::GO, &go("small", &[])).2 else { panic!("no disk") };
        assert!(!session.rules.structured && session.contexts.is_empty());
    }

    #[test]
    fn strange_lengths_are_refused_and_passed_over() {
        let table = table();
        let mut talk = Talk::begin(&table, Privacy::Plain);
        assert_eq!(talk.kinds(option::GO, &[0, 0, 0, 200, 1]), [answer::ERR_INVALID]);
        assert_eq!(talk.kinds(option::LIST, b"x"), [answer::ERR_INVALID]);
        let mut output = Vec::new();
        let large = encode(option::INFO, &vec![0; 1 << 20]);
        let (taken, _) = talk.0.advance(&large, &mut output).unwrap();
        assert_eq!((taken, &output[12..16]), (16, &answer::ERR_TOO_BIG.to_be_bytes()[..]));
        let (taken, _) = talk.0.advance(&large[16..], &mut output).unwrap();
        assert_eq!(taken, 1 << 20);
        assert_eq!(talk.kinds(option::ABORT, &[]), [answer::ACK]);
    }

    #[test]
    fn what_is_no_option_ends_the_handshake() {
        let table = table();
        let mut talk = Talk::begin(&table, Privacy::Plain);
        assert!(talk.0.advance(&[7; 16], &mut Vec::new()).is_err());
        let mut flags = Negotiation::new(&table, Privacy::Plain);
        assert!(flags.advance(&[0, 0, 0, 0x81], &mut Vec::new()).is_err());
        let mut talk = Talk::begin(&table, Privacy::Plain);
        let many = (0..2 * OPTIONS_MAX).map(|_| talk.0.advance(&encode(99, &[]), &mut Vec::new()));
        assert_eq!(many.filter(Result::is_ok).count(), OPTIONS_MAX as usize);
    }
}
