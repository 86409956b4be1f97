//! Images: the data model that all of diskcast shares (chunks, trees, manifests), with capture and install.
//!
//! A disk is cut into chunks of a fixed size. Each chunk is stored as one [object](ObjectRef), which can be decoded
//! without any other. The nodes of a tree name the chunks, and a [`Manifest`] names the tree. `formats/image.md`
//! specifies the formats. This crate uses the `disk` crate. It sees stores and networks only as an [`ObjectSource`]
//! or an [`ObjectSink`].

mod buffer;
pub mod capture;
pub mod catalogue;
pub mod chunk;
pub mod cipher;
mod compare;
mod draft;
pub mod envelope;
pub mod extents;
pub mod install;
pub mod layout;
pub mod leaf;
mod made;
pub mod manifest;
pub mod node;
pub mod object;
mod objects;
mod part;
pub mod progress;
mod qcow2;
mod reader;
mod recode;
mod records;
pub mod signature;
mod source_record;
pub mod tree;
mod unreadable;
mod workers;

pub use buffer::AlignedBuffer;
pub use capture::{CaptureOptions, Captured, KnownChunks, capture};
pub use catalogue::{Catalogue, CatalogueBuilder};
pub use chunk::{ChunkRef, Decoder, Encoder};
pub use cipher::{Cipher, EncryptionKey};
pub use compare::{Comparison, compare};
pub use envelope::SignedManifest;
pub use extents::{ChunkExtents, ChunkSize, Run};
pub use install::{
    FreeSpace, InstallOptions, InstallReport, Installer, Offer, OldSignature, Reuse, left_out, old_signatures,
};
pub use layout::Layout;
pub use leaf::Leaf;
pub use made::{Made, SurveyRecord};
pub use manifest::Manifest;
pub use node::Child;
pub use object::{ObjectKind, ObjectRef, Verified};
pub use objects::{MemoryObjects, ObjectSink, ObjectSource};
pub use part::Part;
pub use progress::{NoProgress, Progress, Stage};
pub use qcow2::{DiskPart, Qcow2Layout};
pub use reader::VersionReader;
pub use recode::Recoder;
pub use signature::{Binding, PublicKey, Signature, Signed, Trust};
pub use source_record::SourceRecord;
pub use tree::{DecryptedNodes, Difference, Differences, LeafRun, Leaves, Root, TreeBuilder, TreeEditor};
pub use unreadable::UnreadableRange;

/// Keys that sign manifests and records; a [`PublicKey`] checks what they signed.
pub use ed25519_dalek::SigningKey;
