//! Figure 6.6 of seed 001: BitTorrent with pieces of 64 KiB to 128 MiB. The image is cut into chunks of 64 KiB, since a
//! piece holds whole chunks. It is hashed here and put where a server keeps what it has hashed.

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind};
use serde_json::{Value, json};
use store::{Form, FormKind, Location, Reference, Repository};
use torrent::torrent_folder::{Of, TorrentFolder};
use torrent::{Content, Kind, Metainfo, hash};

use super::{HOSTS, MEBIBYTES, link_seconds, speed_up};
use crate::context::{Context, timed};
use crate::figure::{Bar, Figure, median};
use crate::room::star;
use crate::torrent::{fetch_all, open};
use crate::transfer::Load;
use crate::{Group, Result, load};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "thesis.figure_6_6",
        "mean time of 16 hosts by BitTorrent with pieces of 8 MiB over that with 256 KiB; shown",
    )],
    measure,
};

const ROUNDS: usize = 2;
const RATE: u64 = 100_000_000;
/// Sizes of pieces in KiB.
const PIECES: [u32; 12] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];
const BEST: u32 = 256;
const COMPARED: u32 = 8192;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let image = Image::new(context)?;
    let alone = link_seconds(MEBIBYTES, RATE);
    let (mut rows, mut best, mut compared): (Vec<Value>, _, _) = (vec![], vec![], vec![]);
    for piece in PIECES {
        let (mut means, mut lasts, mut sent) = (vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let (seconds, images) = image.fetched(context, piece << 10)?;
            means.push(seconds.iter().sum::<f64>() / seconds.len() as f64 / alone);
            lasts.push(seconds.iter().copied().fold(0.0, f64::max) / alone);
            sent.push(images);
        }
        rows.push(json!({
            "piece KiB": piece, "pieces": (MEBIBYTES << 10).div_ceil(piece.into()), "mean, images": median(&means),
            "last, images": median(&lasts), "images that the server sent": median(&sent),
        }));
        match piece {
            BEST => best = means,
            COMPARED => compared = means,
            _ => {}
        }
    }
    let ratios: Vec<f64> = compared.iter().zip(&best).map(|(compared, best)| compared / best).collect();
    let words = format!(
        "{MEBIBYTES} MiB of random data, {HOSTS} hosts at 100 Mbit/s, the server at ten times that; seed 001: 9.77 \
         GB, so a piece is 40 times as large a part of the image here"
    );
    Ok(vec![
        Figure::new("thesis.figure_6_6", &ratios, "ratio", Bar::Shown)
            .peer("seed 001", "60 machines, 256 KiB the best mean, 8 MiB about 5 % worse", 1.05, "ratio")
            .on(&words, "files in tmpfs, read back")
            .with(json!(rows)),
    ])
}

/// An image in a repository, whose server gets its torrents from here.
struct Image {
    repo: PathBuf,
    load: Load,
    form: Version,
    of: Of,
}

/// A version as a raw file.
struct Version(Form);

impl Content for Version {
    fn len(&self) -> u64 {
        self.0.file_bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> base::Result<()> {
        self.0.read_at(offset, into)
    }

    fn keep(&self, _: u64, _: &[u8]) -> base::Result<()> {
        Err(Error::new(ErrorKind::Refused, "it is only hashed"))
    }
}

impl Image {
    fn new(context: &Context) -> Result<Self> {
        let (repo, name) = (context.folder()?, "pieces");
        let disk = load::random_disk(context, MEBIBYTES << 20)?;
        timed(context.diskcast(&repo).args(["capture", "--raw", "--chunk", "64K"]).arg(disk).arg(name))?;
        let repository = Repository::open(&Location::Folder(repo.clone()))?;
        let reference: Reference = format!("{name}@1").parse()?;
        let (version, _) = repository.signed_manifest(&reference)?;
        let of = Of {
            reference: reference.to_string(),
            manifest: version.digest(),
            form: FormKind::Raw.to_string(),
        };
        let form = Version(repository.form(&reference, FormKind::Raw)?);
        let load = Load { name: name.to_owned(), words: String::new() };
        Ok(Self { repo, load, form, of })
    }

    /// Seconds of each host, and images that the server sent.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn fetched(&self, context: &Context, piece_bytes: u32) -> Result<(Vec<f64>, f64)> {
        let folder = self.repo.join("state-0/torrents");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let torrent = Metainfo::new("pieces.img", &hash(&self.form, piece_bytes)?, Kind::Hybrid);
        TorrentFolder::open(&folder)?.keep(&self.of, &torrent)?;
        let room = open(context, &self.repo, &self.load, &star(HOSTS, RATE, 0), &[])?;
        speed_up(&room.star, RATE)?;
        let before = room.star.sent_on_wire(0)?;
        let done = fetch_all(&room, &self.load)?;
        let sent = room.star.sent_on_wire(0)? - before;
        only_one(&folder)?;
        let seconds = done.iter().map(|host| host.ended - host.began).collect();
        Ok((seconds, sent as f64 / (MEBIBYTES << 20) as f64))
    }
}

/// An error if the server has made another torrent than the one that was there.
fn only_one(folder: &Path) -> Result<()> {
    match std::fs::read_dir(folder)?.count() {
        1 => Ok(()),
        count => Err(format!("{count} torrents are kept: the server made one of its own").into()),
    }
}
