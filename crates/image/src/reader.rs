//! A version as a disk that can be read in any order, for those who look at a few places of it.

use base::{Error, Result};
use disk::{Geometry, ReadAt};
use parking_lot::Mutex;

use crate::catalogue::Catalogue;
use crate::chunk::Decoder;
use crate::leaf::Leaf;
use crate::objects::ObjectSource;

/// Bytes of a sector.
const SECTOR: usize = 512;

/// The disk of a version. Free sectors read as zeros.
pub struct VersionReader<'a> {
    catalogue: &'a Catalogue,
    source: &'a dyn ObjectSource,
    name: String,
    state: Mutex<State>,
}

/// The decoder, and the chunk that was read last: its number and its content.
struct State {
    decoder: Decoder,
    last: Option<(u64, Vec<u8>)>,
}

impl<'a> VersionReader<'a> {
    /// Reads the version of `catalogue`, whose objects come from `source`. `name` is what messages call it.
    pub fn new(
        catalogue: &'a Catalogue,
        source: &'a dyn ObjectSource,
        name: impl Into<String>,
    ) -> Result<Self> {
        let decoder = Decoder::new()?.decrypting(catalogue.cipher().clone());
        let state = Mutex::new(State { decoder, last: None });
        Ok(Self { catalogue, source, name: name.into(), state })
    }

    /// The content of chunk `index`.
    fn chunk(&self, index: u64, decoder: &mut Decoder) -> Result<Vec<u8>> {
        let layout = self.catalogue.layout();
        let mut content = vec![0; layout.chunk.bytes() as usize];
        for run in self.catalogue.leaves_within(index..index + 1) {
            let Leaf::Data(extents, chunk) = run?.leaf else { continue };
            let mut plain = vec![0; extents.len_bytes() as usize];
            decoder.decode(&self.source.verified(&chunk.object())?, &extents, chunk.plain, &mut plain)?;
            let mut rest = &plain[..];
            for run in extents.runs() {
                let bytes = |sectors: u16| usize::from(sectors) * SECTOR;
                let (here, behind) = rest.split_at(bytes(run.count));
                content[bytes(run.start)..][..here.len()].copy_from_slice(here);
                rest = behind;
            }
        }
        Ok(content)
    }
}

impl ReadAt for VersionReader<'_> {
    fn geometry(&self) -> Geometry {
        let layout = self.catalogue.layout();
        let sector = layout.logical_sector_bytes;
        Geometry {
            size_bytes: layout.size_bytes(),
            logical_sector_bytes: sector,
            physical_sector_bytes: sector,
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.catalogue.layout().size_bytes()) {
            let error = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return Err(Error::from_io(format!("read `{}` at offset {offset}", self.name), error));
        }
        let chunk_bytes = u64::from(self.catalogue.layout().chunk.bytes());
        let mut state = self.state.lock();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let index = at / chunk_bytes;
            let within = usize::try_from(at % chunk_bytes).expect("less than a chunk");
            if state.last.as_ref().is_none_or(|(last, _)| *last != index) {
                let content = self.chunk(index, &mut state.decoder)?;
                state.last = Some((index, content));
            }
            let (_, content) = state.last.as_ref().expect("it was just set");
            let len = (content.len() - within).min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&content[within..within + len]);
            done += len;
        }
        Ok(())
    }

    fn name(&self) -> &str {
        &self.name
    }
}
