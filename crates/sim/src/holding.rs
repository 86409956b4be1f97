//! Tracks which blocks and symbols one receiver has or will receive, computed only from the packets.

use proto::multicast::{BlockHeader, Disposition};

use crate::truth::Truth;

/// The blocks and symbols of one receiver.
#[derive(Debug, Clone)]
pub(crate) struct Holding {
    /// One bit for each block of the image.
    blocks: Vec<u64>,
    objects: Vec<Object>,
    /// Number of blocks and symbols that were sent while the receiver lacked them, and that it lost or refused.
    pub missed: u64,
}

#[derive(Debug, Clone, Default)]
struct Object {
    /// Number of its blocks that were received or are on their way.
    blocks: u32,
    symbols: Vec<Symbol>,
}

#[derive(Debug, Clone, Copy)]
struct Symbol {
    row: u16,
    /// The block whose place in the buffer it takes, once it has arrived.
    block: Option<u16>,
}

impl Holding {
    pub(crate) fn new(truth: &Truth) -> Self {
        let objects = vec![Object::default(); truth.objects.len()];
        Self { blocks: vec![0; truth.blocks().div_ceil(64)], objects, missed: 0 }
    }

    /// Forgets everything, as after a crash.
    pub(crate) fn forget(&mut self) {
        self.blocks.fill(0);
        self.objects.fill_with(Object::default);
    }

    /// A block or symbol is sent, which this receiver gets if `reached`. Returns whether the receiver lacks it.
    pub(crate) fn sent(&mut self, truth: &Truth, header: &BlockHeader, reached: bool) -> bool {
        let object = &mut self.objects[header.object as usize];
        let lacks = object.blocks + (object.symbols.len() as u32) < truth.object_blocks(header.object);
        self.missed += u64::from(!reached);
        match header.symbol(&truth.shape) {
            Some(row) => {
                let new = object.symbols.iter().all(|symbol| symbol.row != row);
                if reached && new {
                    object.symbols.push(Symbol { row, block: None });
                }
                lacks && new
            }
            None => {
                let block = truth.block(header.object, header.block);
                let (word, bit) = (block / 64, 1 << (block % 64));
                let new = self.blocks[word] & bit == 0;
                if reached && new {
                    self.blocks[word] |= bit;
                    object.blocks += 1;
                }
                lacks && new
            }
        }
    }

    /// A block or symbol arrived, and the receiver treated it as `did` says.
    pub(crate) fn came(&mut self, truth: &Truth, header: &BlockHeader, did: Option<Disposition>) {
        let object = &mut self.objects[header.object as usize];
        let symbol = header.symbol(&truth.shape);
        match (did, symbol) {
            (Some(Disposition::Place { offset, .. }), Some(row)) => {
                let place = (offset / u32::from(truth.shape.block_bytes)) as u16;
                if let Some(symbol) = object.symbols.iter_mut().find(|symbol| symbol.row == row) {
                    symbol.block = Some(place);
                }
            }
            (Some(Disposition::Place { .. }), None) => {
                object.symbols.retain(|symbol| symbol.block != Some(header.block));
            }
            (Some(Disposition::Duplicate), _) => {}
            (_, Some(row)) => object.symbols.retain(|symbol| symbol.row != row),
            (_, None) => {
                let block = truth.block(header.object, header.block);
                let (word, bit) = (block / 64, 1 << (block % 64));
                object.blocks -= u32::from(self.blocks[word] & bit != 0);
                self.blocks[word] &= !bit;
            }
        }
        self.missed += u64::from(did == Some(Disposition::BufferFull));
    }
}
