//! A volume group as its metadata describes it (lib/format_text of LVM2), and what it has on one of its physical
//! volumes.

use std::collections::HashSet;

use super::super::{Why, require};
use super::config::{Section, Value};
use base::Extent;

/// What a logical volume is made of.
pub(super) struct Logical {
    pub(super) name: String,
    pub(super) segments: Vec<Segment>,
    /// Whether it holds what its user wrote, and not the parts or the changes of another volume.
    pub(super) is_plain: bool,
    /// Whether it is a part of another one, of which LVM does not tell.
    pub(super) is_part: bool,
    /// Whether some of it is on another physical volume.
    pub(super) is_elsewhere: bool,
}

/// Sectors of a logical volume, in turn from each of its stripes. Places are in sectors.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    /// Where it begins in the logical volume.
    pub(super) start: u64,
    pub(super) count: u64,
    /// Where its stripes begin in the physical volume: those that are on it.
    pub(super) stripes: Vec<u64>,
    /// How many stripes it has, here and elsewhere.
    stripes_in_all: u64,
    /// Sectors from one stripe before the next.
    pub(super) stripe_sectors: u64,
}

/// The group.
pub(super) struct Group {
    pub(super) name: String,
    /// The sectors of the physical volume that its extents have.
    pub(super) extents: Extent,
    pub(super) volumes: Vec<Logical>,
    /// How many physical volumes it has.
    pub(super) physical_volumes: usize,
}

/// What the segments of a group refer to.
struct Layout<'a> {
    /// The name of the physical volume here.
    physical: &'a str,
    /// The names of the others.
    others: HashSet<&'a str>,
    extent_sectors: u64,
    extents: Extent,
    count: u64,
}

impl Group {
    /// The group in `text`. `uuid` is that of the physical volume, which has `sectors`.
    pub(super) fn parse(text: &str, uuid: &str, sectors: u64) -> Result<Self, Why> {
        let damaged = || Why::Whole("the metadata of its volume group is damaged".to_owned());
        let all = Section::parse(text).ok_or_else(damaged)?;
        let (group_name, group) = all.sections().next().ok_or_else(damaged)?;
        let physical: Vec<_> = group.section("physical_volumes").ok_or_else(damaged)?.sections().collect();
        let is_here = |of: &Section| of.text("id").is_some_and(|id| id.replace('-', "") == uuid);
        let (name, here) = physical
            .iter()
            .find(|(_, of)| is_here(of))
            .copied()
            .ok_or_else(|| Why::Whole("its volume group is of another physical volume".to_owned()))?;
        let is_missing =
            here.list("flags").is_some_and(|flags| flags.contains(&Value::Text("MISSING".to_owned())));
        require(!is_missing, || "its volume group misses it".to_owned())?;
        let number = |of: &Section, name| of.number(name).ok_or_else(damaged);
        let (start, count) = (number(here, "pe_start")?, number(here, "pe_count")?);
        let extent_sectors = number(group, "extent_size")?;
        let end = count.checked_mul(extent_sectors).and_then(|len| len.checked_add(start));
        let end = end.filter(|end| *end <= sectors && extent_sectors > 0).ok_or_else(damaged)?;
        let others = physical.iter().map(|(other, _)| *other).filter(|other| *other != name).collect();
        let extents = Extent::between(start, end);
        let layout = Layout { physical: name, others, extent_sectors, extents, count };
        let volumes = group.section("logical_volumes").map_or(Ok(Vec::new()), |all| layout.volumes(all))?;
        Ok(Self { name: group_name.to_owned(), extents, volumes, physical_volumes: physical.len() })
    }
}

impl Layout<'_> {
    fn volumes(&self, all: &Section) -> Result<Vec<Logical>, Why> {
        let segments = || all.sections().flat_map(|(_, volume)| volume.sections());
        // A volume that another one is made of does not hold what it seems to.
        let others = segments().filter(|(_, segment)| segment.text("type") != Some("striped"));
        let parts: HashSet<&str> = others.flat_map(|(_, segment)| segment.texts()).collect();
        require(!parts.contains(self.physical), || {
            "a logical volume of it is of a kind that is not known".to_owned()
        })?;
        let volume = |(name, volume): (&str, &Section)| {
            let is_visible = volume
                .list("status")
                .is_some_and(|status| status.contains(&Value::Text("VISIBLE".to_owned())));
            let is_striped = volume.sections().all(|(_, segment)| segment.text("type") == Some("striped"));
            let segments = volume.sections().filter(|(_, segment)| segment.text("type") == Some("striped"));
            let mut segments =
                segments.map(|(_, segment)| self.segment(name, segment)).collect::<Result<Vec<_>, _>>()?;
            segments.sort_by_key(|segment| segment.start);
            let follows = segments.is_sorted_by(|one, next| one.start + one.count == next.start);
            let is_elsewhere = segments.iter().any(Segment::is_elsewhere);
            let is_plain = is_visible
                && !is_elsewhere
                && is_striped
                && follows
                && segments.first().is_some_and(|first| first.start == 0)
                && !parts.contains(name);
            Ok(Logical { name: name.to_owned(), segments, is_plain, is_part: !is_visible, is_elsewhere })
        };
        let volumes = all.sections().map(volume).collect::<Result<Vec<_>, Why>>()?;
        let mut places: Vec<Extent> =
            volumes.iter().flat_map(|volume| volume.segments.iter().flat_map(Segment::places)).collect();
        places.sort_unstable_by_key(|place| place.start);
        require(places.is_sorted_by(|one, next| one.end() <= next.start), || {
            "logical volumes of it overlap".to_owned()
        })?;
        Ok(volumes)
    }

    fn segment(&self, volume: &str, segment: &Section) -> Result<Segment, Why> {
        let damaged = || Why::Whole(format!("the metadata of its logical volume `{volume}` is damaged"));
        let number = |name| segment.number(name).ok_or_else(damaged);
        let (start, count, stripes) =
            (number("start_extent")?, number("extent_count")?, number("stripe_count")?);
        let list = segment.list("stripes").ok_or_else(damaged)?;
        let each = count.checked_div(stripes).filter(|each| each * stripes == count && count > 0);
        let each = each.ok_or_else(damaged)?;
        let stripe = |pair: &[Value]| match pair {
            [Value::Text(on), Value::Number(at)] if on == self.physical => {
                let is_inside = at.checked_add(each).is_some_and(|end| end <= self.count);
                is_inside.then(|| Some(self.extents.start + at * self.extent_sectors))
            }
            [Value::Text(on), Value::Number(_)] if self.others.contains(&**on) => Some(None),
            _ => None,
        };
        let places: Vec<Option<u64>> =
            list.chunks(2).map(stripe).collect::<Option<_>>().ok_or_else(damaged)?;
        require(places.len() as u64 == stripes, || {
            format!("the stripes of its logical volume `{volume}` differ")
        })?;
        let stripe_sectors = if stripes == 1 { each * self.extent_sectors } else { number("stripe_size")? };
        // What is read in turn must end together.
        let is_right = stripe_sectors > 0
            && (each * self.extent_sectors).is_multiple_of(stripe_sectors)
            && start.checked_add(count).and_then(|end| end.checked_mul(self.extent_sectors)).is_some();
        let (start, count) =
            (start.wrapping_mul(self.extent_sectors), count.wrapping_mul(self.extent_sectors));
        require(is_right, || format!("the metadata of its logical volume `{volume}` is damaged"))?;
        let here = places.into_iter().flatten().collect();
        Ok(Segment { start, count, stripes: here, stripes_in_all: stripes, stripe_sectors })
    }
}

impl Segment {
    pub(super) fn end(&self) -> u64 {
        self.start + self.count
    }

    /// Whether some of its stripes are on another physical volume.
    fn is_elsewhere(&self) -> bool {
        self.stripes.len() as u64 != self.stripes_in_all
    }

    /// What it takes of the physical volume.
    pub(super) fn places(&self) -> impl Iterator<Item = Extent> + '_ {
        let each = self.count / self.stripes_in_all;
        self.stripes.iter().map(move |start| Extent::new(*start, each))
    }

    /// The whole rows of stripes between two sectors of the logical volume: where they begin and end there, and what
    /// each stripe has of them.
    pub(super) fn rows(&self, start: u64, end: u64) -> (Extent, Vec<Extent>) {
        let row = self.stripe_sectors * self.stripes.len() as u64;
        let (first, last) = ((start - self.start).div_ceil(row), (end.min(self.end()) - self.start) / row);
        let count = last.saturating_sub(first);
        let of_stripe =
            |stripe: &u64| Extent::new(stripe + first * self.stripe_sectors, count * self.stripe_sectors);
        let inside = Extent::new(self.start + first * row, count * row);
        (inside, self.stripes.iter().map(of_stripe).collect())
    }

    /// The sectors of the physical volume where those of the logical one from `at` on lie one after another.
    pub(super) fn run(&self, at: u64) -> Extent {
        let (inside, stripes) = (at - self.start, self.stripes.len() as u64);
        let (turn, rest) = (inside / self.stripe_sectors, inside % self.stripe_sectors);
        let stripe = self.stripes[usize::try_from(turn % stripes).expect("an index")];
        Extent::new(stripe + turn / stripes * self.stripe_sectors + rest, self.stripe_sectors - rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(volumes: &str) -> String {
        format!(
            "vg {{ extent_size = 8 physical_volumes {{ pv0 {{ id = \"a-b\" pe_start = 16 pe_count = 100 }} }} \
             logical_volumes {{ {volumes} }} }}"
        )
    }

    fn volume(name: &str, segments: &str) -> String {
        format!("{name} {{ status = [\"READ\", \"VISIBLE\"] {segments} }}")
    }

    const LINEAR: &str = "segment1 { start_extent = 0 extent_count = 10 type = \"striped\" stripe_count = 1 \
                          stripes = [ \"pv0\", 5 ] }";

    fn parse(text: &str) -> Result<Group, String> {
        let group = Group::parse(text, "ab", 1000);
        group.map_err(|why| if let Why::Whole(why) = why { why } else { unreachable!() })
    }

    #[test]
    fn stripes_take_turns() {
        let more = "segment2 { start_extent = 10 extent_count = 4 type = \"striped\" stripe_count = 2 \
                    stripe_size = 4 stripes = [ \"pv0\", 20, \"pv0\", 40 ] }";
        let group = parse(&text(&volume("root", &format!("{LINEAR} {more}")))).unwrap();
        assert_eq!(group.extents, Extent::new(16, 800));
        let [linear, striped] = &group.volumes[0].segments[..] else { panic!("two segments") };
        assert!(group.volumes[0].is_plain);
        assert_eq!((linear.run(0), linear.run(79)), (Extent::new(56, 80), Extent::new(135, 1)));
        let (one, other) = (16 + 160, 16 + 320);
        let runs = [80, 83, 84, 88, 111].map(|at| striped.run(at));
        let expected = [(one, 4), (one + 3, 1), (other, 4), (one + 4, 4), (other + 15, 1)];
        assert_eq!(runs, expected.map(|(start, count)| Extent::new(start, count)));
        assert_eq!(striped.places().collect::<Vec<_>>(), [Extent::new(one, 16), Extent::new(other, 16)]);
        // A row is 8 sectors.
        let rows = (Extent::new(88, 16), vec![Extent::new(one + 4, 8), Extent::new(other + 4, 8)]);
        assert_eq!(striped.rows(81, 111), rows);
        assert!(striped.rows(81, 95).0.is_empty());
    }

    #[test]
    fn volumes_that_others_are_made_of_are_not_plain() {
        let snapshot = "snapshot0 { status = [\"READ\"] segment1 { start_extent = 0 extent_count = 10 \
                        type = \"snapshot\" origin = \"root\" cow_store = \"changes\" } }";
        let changes = volume("changes", &LINEAR.replace("\"pv0\", 5", "\"pv0\", 50"));
        let hidden =
            volume("hidden", &LINEAR.replace("\"pv0\", 5", "\"pv0\", 70")).replace("VISIBLE", "WRITE");
        let group =
            parse(&text(&format!("{} {changes} {snapshot} {hidden}", volume("root", LINEAR)))).unwrap();
        assert!(group.volumes.iter().all(|volume| !volume.is_plain));
        assert!(parse(&text(&volume("home", LINEAR))).unwrap().volumes[0].is_plain);
    }

    #[test]
    fn of_a_volume_on_two_disks_only_what_is_here_counts() {
        let half = "segment1 { start_extent = 0 extent_count = 10 type = \"striped\" stripe_count = 2 stripe_size = 4 \
                    stripes = [ \"pv1\", 0, \"pv0\", 20 ] }";
        let there = volume("there", &LINEAR.replace("\"pv0\"", "\"pv1\""));
        let all = format!("{} {} {there}", volume("home", LINEAR), volume("half", half));
        let group = parse(&text(&all).replace("} logical", "pv1 { id = \"c\" } } logical")).unwrap();
        let of = |name: &str| group.volumes.iter().find(|volume| volume.name == name).unwrap();
        let places = |name: &str| -> Vec<_> { of(name).segments.iter().flat_map(Segment::places).collect() };
        assert_eq!((group.physical_volumes, of("home").is_plain, of("home").is_elsewhere), (2, true, false));
        assert_eq!(places("home"), [Extent::new(56, 80)]);
        assert_eq!((of("half").is_plain, of("half").is_elsewhere), (false, true));
        assert_eq!(places("half"), [Extent::new(16 + 160, 40)]);
        assert_eq!((of("there").is_plain, places("there")), (false, vec![]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let twice = format!("{} {}", volume("root", LINEAR), volume("home", LINEAR));
        let cases = [
            (text(&twice), "overlap"),
            (text(&volume("a", &LINEAR.replace(", 5", ", 95"))), "`a` is damaged"),
            (text(&volume("a", &LINEAR.replace("count = 10", "count = 0"))), "`a` is damaged"),
            (text(&volume("a", &LINEAR.replace("\"pv0\"", "\"pv1\""))), "`a` is damaged"),
            (
                text(&volume(
                    "a",
                    &LINEAR.replace("start_extent = 0", "start_extent = 18446744073709551615"),
                )),
                "damaged",
            ),
            (text(&volume("a", &LINEAR.replace("\"striped\"", "\"new\""))), "a kind that is not known"),
            (text("").replace("= 100", "= 1000"), "is damaged"),
            (text("").replace("extent_size = 8", "extent_size = 0"), "is damaged"),
            (text("").replace("a-b", "a-c"), "another physical volume"),
            (text("").replace("id = \"a-b\"", "id = \"a-b\" flags = [\"MISSING\"]"), "misses it"),
        ];
        for (text, why) in cases {
            let said = parse(&text).err().unwrap_or_default();
            assert!(said.contains(why), "{why}: {said}");
        }
    }
}
