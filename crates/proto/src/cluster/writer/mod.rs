//! The machine that appends to segments: forms runs of what is to be stored, sends their parts to the components in
//! order, and closes a segment at its last complete run when a device fails. formats/cluster.md, section 2.
//!
//! It handles numbers and lengths alone; the driver owns the bytes and computes parity. Each component has at most one
//! request under way. What was formed meanwhile goes with the next one, so a slow device gets longer requests and not a
//! longer queue, and one flush there covers them.

use std::collections::{BTreeMap, VecDeque};

use super::runs::{Run, Width};
use super::{DeviceId, PART_BYTES_MAX, directory_bytes};

/// A piece of content to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(pub u64);

/// A run that was formed. Never used twice by one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);

/// Bounds of a writer.
#[derive(Debug, Clone, Copy)]
pub struct WriterSetting {
    /// A run takes no further item once it has this many bytes of content.
    pub run_bytes: u64,
    /// Shorter runs are formed only while fewer than this many are under way.
    pub short_runs_max: usize,
    /// No run is formed while this many are under way.
    pub runs_max: usize,
    /// A segment takes no further run once its components have this many bytes.
    pub component_bytes: u64,
}

/// A segment to append to, as the metadata service granted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRight {
    /// Its number.
    pub segment: u64,
    /// Its width.
    pub width: Width,
    /// The device of each component.
    pub devices: Vec<DeviceId>,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Get a segment without components on these devices; answer by [`Writer::opened`] or [`Writer::open_failed`].
    Open {
        /// Devices that failed lately.
        avoid: Vec<DeviceId>,
    },
    /// Lay out these items as a run with parts of this length, and compute its parity.
    Form {
        /// The run.
        run: RunId,
        /// Its segment.
        segment: u64,
        /// Its place there.
        place: Run,
        /// The segment's width.
        width: Width,
        /// What it holds, in order.
        items: Vec<ItemId>,
    },
    /// Append the parts of these runs to a component; answer by [`Writer::appended`] or [`Writer::append_failed`].
    Append {
        /// The segment.
        segment: u64,
        /// The component.
        component: u8,
        /// Its device.
        device: DeviceId,
        /// The length that the component has now.
        at: u64,
        /// The runs, in order.
        runs: Vec<RunId>,
    },
    /// The run is durable on all components: insert the entries of its items; answer by [`Writer::inserted`].
    Insert {
        /// The run.
        run: RunId,
    },
    /// The run's parts are not needed any more: its items go into another one.
    Forget {
        /// The run.
        run: RunId,
    },
    /// Nothing is appended to the segment any more, and all its entries are inserted: seal its components.
    Seal {
        /// The segment.
        segment: u64,
        /// The length of all components.
        length: u64,
    },
}

#[derive(Debug, Clone)]
struct Waiting {
    item: ItemId,
    content_bytes: u64,
    name_bytes: usize,
}

#[derive(Debug)]
struct Formed {
    id: RunId,
    place: Run,
    items: Vec<Waiting>,
}

/// A segment that runs are appended to, or whose entries are not all inserted yet.
#[derive(Debug)]
struct Segment {
    right: SegmentRight,
    /// Where the next run goes.
    end: u64,
    /// Up to where all components are durable.
    complete: u64,
    /// Runs that are not complete, in order.
    runs: VecDeque<Formed>,
    components: Vec<Component>,
    /// Complete runs whose entries are not inserted.
    inserting: Vec<RunId>,
    closed: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Component {
    durable: u64,
    /// The end of the request under way.
    sent: Option<u64>,
}

/// Appends what one client stores to one segment after the other.
#[derive(Debug)]
pub struct Writer {
    setting: WriterSetting,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    segments: BTreeMap<u64, Segment>,
    /// The segment of `segments` that takes runs.
    current: Option<u64>,
    opening: bool,
    /// Devices that failed since the last success in opening.
    avoid: Vec<DeviceId>,
    next_run: u64,
    commands: VecDeque<Command>,
}

impl Writer {
    /// A machine that has nothing to do.
    #[must_use]
    pub fn new(setting: WriterSetting) -> Self {
        Self {
            setting,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            segments: BTreeMap::new(),
            current: None,
            opening: false,
            avoid: Vec::new(),
            next_run: 0,
            commands: VecDeque::new(),
        }
    }

    /// Takes a piece of content, of at most `PIECE_BYTES_MAX` bytes, whose name has `name_bytes`.
    pub fn submit(&mut self, item: ItemId, content_bytes: u64, name_bytes: usize) {
        self.waiting.push_back(Waiting { item, content_bytes, name_bytes });
        self.waiting_bytes += content_bytes;
        self.proceed();
    }

    /// What to do next.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Whether everything that was submitted is stored.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let busy = |segment: &Segment| !segment.runs.is_empty() || !segment.inserting.is_empty();
        self.waiting.is_empty() && !self.segments.values().any(busy)
    }

    /// A segment was opened.
    pub fn opened(&mut self, right: SegmentRight) {
        assert_eq!(right.devices.len(), usize::from(right.width.components()), "a device for each component");
        self.opening = false;
        // Those that failed are known to the metadata service by now, or answer again.
        self.avoid.clear();
        self.current = Some(right.segment);
        let components = vec![Component::default(); right.devices.len()];
        let segment = Segment {
            end: 0,
            complete: 0,
            runs: VecDeque::new(),
            components,
            inserting: Vec::new(),
            closed: false,
            right,
        };
        self.segments.insert(segment.right.segment, segment);
        self.proceed();
    }

    /// No segment could be opened. The next call of [`Self::submit`] or [`Self::retry`] tries again.
    pub fn open_failed(&mut self) {
        self.opening = false;
    }

    /// Tries to go on after [`Self::open_failed`].
    pub fn retry(&mut self) {
        self.proceed();
    }

    /// Takes back everything that no segment took yet: the caller has waited long enough.
    pub fn give_up(&mut self) -> Vec<ItemId> {
        self.waiting_bytes = 0;
        self.waiting.drain(..).map(|waiting| waiting.item).collect()
    }

    /// A component acknowledged the request under way as durable.
    pub fn appended(&mut self, segment: u64, component: u8) {
        let Some(open) = self.segments.get_mut(&segment) else { return };
        let component = &mut open.components[usize::from(component)];
        let Some(sent) = component.sent.take() else { return };
        assert!(sent >= component.durable, "a component does not shrink");
        component.durable = sent;
        if open.closed {
            return;
        }
        let complete = open.components.iter().map(|component| component.durable).min().unwrap_or(0);
        while open.runs.front().is_some_and(|run| run.place.end() <= complete) {
            let run = open.runs.pop_front().expect("there is a first one");
            open.complete = run.place.end();
            open.inserting.push(run.id);
            self.commands.push_back(Command::Insert { run: run.id });
        }
        self.proceed();
    }

    /// A component did not take what was sent. Its segment takes nothing more: what is not complete goes elsewhere.
    pub fn append_failed(&mut self, segment: u64, component: u8) {
        let Some(open) = self.segments.get_mut(&segment) else { return };
        let device = open.right.devices[usize::from(component)];
        open.components[usize::from(component)].sent = None;
        if !self.avoid.contains(&device) {
            self.avoid.push(device);
        }
        self.close(segment);
        self.proceed();
    }

    /// Closes the segment that takes runs, as before the end of the program.
    pub fn close_current(&mut self) {
        if let Some(segment) = self.current {
            self.close(segment);
        }
        self.proceed();
    }

    /// The entries of a run are stored.
    pub fn inserted(&mut self, run: RunId) {
        for segment in self.segments.values_mut() {
            segment.inserting.retain(|inserting| *inserting != run);
        }
        self.proceed();
    }

    /// Ends a segment at its last complete run. Items of the others wait again, before all that came later.
    fn close(&mut self, segment: u64) {
        let Some(open) = self.segments.get_mut(&segment) else { return };
        open.closed = true;
        if self.current == Some(segment) {
            self.current = None;
        }
        for run in std::mem::take(&mut open.runs).into_iter().rev() {
            self.commands.push_back(Command::Forget { run: run.id });
            for waiting in run.items.into_iter().rev() {
                self.waiting_bytes += waiting.content_bytes;
                self.waiting.push_front(waiting);
            }
        }
    }

    /// Does everything that can be done now.
    fn proceed(&mut self) {
        self.seal_finished();
        if self.current.is_none() && !self.opening && !self.waiting.is_empty() {
            self.opening = true;
            self.commands.push_back(Command::Open { avoid: self.avoid.clone() });
        }
        while self.form() {}
        if let Some(open) = self.current.and_then(|segment| self.segments.get_mut(&segment)) {
            open.send(&mut self.commands);
            // Full: what waits goes to the next one, and this one is sealed once it is complete.
            if open.end >= self.setting.component_bytes && open.runs.is_empty() {
                open.closed = true;
                self.current = None;
                self.proceed();
            }
        }
    }

    fn seal_finished(&mut self) {
        let finished = |segment: &Segment| segment.closed && segment.inserting.is_empty();
        let commands = &mut self.commands;
        self.segments.retain(|&number, segment| {
            let keep = !finished(segment);
            if !keep {
                commands.push_back(Command::Seal { segment: number, length: segment.complete });
            }
            keep
        });
    }

    /// Forms one run, if there is what to form it of. Returns whether it did.
    fn form(&mut self) -> bool {
        let setting = self.setting;
        let Some(open) = self.current.and_then(|segment| self.segments.get_mut(&segment)) else {
            return false;
        };
        let enough = self.waiting_bytes >= setting.run_bytes || open.runs.len() < setting.short_runs_max;
        let full = open.end >= setting.component_bytes || open.runs.len() >= setting.runs_max;
        if self.waiting.is_empty() || !enough || full {
            return false;
        }
        let mut items = Vec::new();
        let (mut content, mut names) = (0, directory_bytes(std::iter::empty()) as u64);
        while let Some(next) = self.waiting.front() {
            let directory = directory_bytes(std::iter::once(next.name_bytes)) as u64;
            if !items.is_empty() && content + next.content_bytes > setting.run_bytes {
                break;
            }
            content += next.content_bytes;
            names += directory;
            self.waiting_bytes -= next.content_bytes;
            items.extend(self.waiting.pop_front());
        }
        let width = open.right.width;
        let place = Run { at: open.end, bytes: Run::part_bytes(content + names, width) };
        open.end = place.end();
        let id = RunId(self.next_run);
        self.next_run += 1;
        self.commands.push_back(Command::Form {
            run: id,
            segment: open.right.segment,
            place,
            width,
            items: items.iter().map(|waiting: &Waiting| waiting.item).collect(),
        });
        open.runs.push_back(Formed { id, place, items });
        true
    }
}

impl Segment {
    /// Sends each idle component what it does not have.
    fn send(&mut self, commands: &mut VecDeque<Command>) {
        for (number, component) in (0u8..).zip(&mut self.components) {
            if component.sent.is_some() {
                continue;
            }
            let most = component.durable + u64::from(PART_BYTES_MAX);
            let missing = |run: &&Formed| run.place.at >= component.durable && run.place.end() <= most;
            let runs: Vec<_> = self.runs.iter().filter(missing).collect();
            let Some(last) = runs.last() else { continue };
            assert_eq!(runs[0].place.at, component.durable, "runs follow each other");
            component.sent = Some(last.place.end());
            commands.push_back(Command::Append {
                segment: self.right.segment,
                component: number,
                device: self.right.devices[usize::from(number)],
                at: component.durable,
                runs: runs.iter().map(|run| run.id).collect(),
            });
        }
    }
}

#[cfg(test)]
mod tests;
