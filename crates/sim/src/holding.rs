//! What one receiver has, or has on its way, told from the packets alone: which blocks, and which symbols in the place
//! of which blocks.

use proto::multicast::{BlockHeader, Disposition};

use crate::truth::Truth;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Holding {
    /// A bit for each block of the image.
    blocks: Vec<u64>,
    objects: Vec<Object>,
    /// How many blocks and symbols were sent that it lacked and that did not reach it or were refused.
    pub missed: u64,
}

#[derive(Debug, Clone, Default)]
struct Object {
    /// Number of its blocks here or on their way.
    blocks: u32,
    symbols: Vec<Symbol>,
}

#[derive(Debug, Clone, Copy)]
struct Symbol {
    row: u16,
    /// The block in whose place it lies, once it is here.
    block: Option<u16>,
}

impl Holding {
    pub(crate) fn new(truth: &Truth) -> Self {
        let objects = vec![Object::default(); truth.objects.len()];
        Self { blocks: vec![0; truth.blocks().div_ceil(64)], objects, missed: 0 }
    }

    /// Loses all.
    pub(crate) fn forget(&mut self) {
        self.blocks.fill(0);
        self.objects.fill_with(Object::default);
    }

    /// A block or a symbol is sent that will come here or not: whether it is of use.
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

    /// A block or a symbol came, and the receiver did this with it.
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
