//! Tests which machines the table keeps, and for how long; and what it keeps of their addresses.

use super::*;

const DAY: u64 = 24 * 3600;

/// What docs/netboot.md says of machines that nobody admitted.
#[test]
fn strangers_are_kept_as_the_page_says() {
    let page = include_str!("../../../../../docs/netboot.md");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "The table has the thousand of these that were seen last, each for a day;",
        "`diskcast hosts remove --strangers` forgets them.",
        "Jobs and machines survive a restart of the server (`machines.redb` in its state folder); machines that nobody \
         admitted do not, and call again.",
    ] {
        assert!(page.contains(words), "the page does not say any more: {words}");
    }
    let mac = |number: u16| {
        let [high, low] = number.to_be_bytes();
        Mac([2, 0, 0, 0, high, low])
    };
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    admit_new(&mut table);
    // One after the other, and then the first ones again: the thousand that were seen last are there, and no others.
    (0..1000).for_each(|number| table.seen(mac(number), Step::Firmware, at(10 + u64::from(number))));
    (0..100).for_each(|number| table.seen(mac(number), Step::Loader, at(2000)));
    (1000..1050).for_each(|number| table.seen(mac(number), Step::Firmware, at(2001)));
    let strangers = |table: &Table| -> Vec<String> {
        let all = table.list(at(0)).machines.into_iter();
        all.filter(|machine| !machine.admitted).map(|machine| machine.mac).collect()
    };
    let expected: Vec<String> = (0..100).chain(150..1050).map(|number| mac(number).to_string()).collect();
    assert_eq!(strangers(&table), expected);
    // Each for a day since it was seen.
    table.sweep(now(2000 + DAY - 1));
    assert_eq!(strangers(&table).len(), 150, "those that were seen at 2000 and later");
    table.sweep(now(2000 + DAY));
    assert_eq!(strangers(&table).len(), 50);
    table.sweep(now(2001 + DAY));
    assert!(strangers(&table).is_empty() && table.list(at(0)).machines.len() == 2, "the admitted ones stay");
    // A restart of the server forgets them, and an administrator does.
    table.seen(mac(1), Step::Firmware, at(3000 + DAY));
    let kept: Vec<_> =
        table.take_changed().into_iter().filter_map(|(mac, record)| Some((mac, record?))).collect();
    assert_eq!(kept.len(), 2);
    assert_eq!(Table::of(kept, 0, WATCH, at(0)).list(at(0)).machines.len(), 2);
    table.apply(&MachineChange::RemoveStrangers, at(3001 + DAY)).unwrap();
    assert!(strangers(&table).is_empty());
}

#[test]
fn a_fixed_address_belongs_to_one_machine_until_it_is_taken_back() {
    let mut table = Table::of(Vec::new(), 0, WATCH, at(0));
    let fixed = Ipv4Addr::new(10, 0, 0, 7);
    let add = |mac: Mac, address| MachineChange::Add {
        machines: vec![NewMachine { mac: mac.to_string(), address, ..NewMachine::default() }],
    };
    table.apply(&add(ONE, Some(fixed)), at(0)).unwrap();
    let both = MachineChange::Add {
        machines: [ONE, TWO]
            .map(|mac| NewMachine { mac: mac.to_string(), address: Some(fixed), ..NewMachine::default() })
            .to_vec(),
    };
    for change in [add(TWO, Some(fixed)), both] {
        let refused = table.apply(&change, at(0)).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Invalid && refused.to_string().contains("10.0.0.7"),
            "{refused}"
        );
    }
    // What does not name one leaves it, also through a restart.
    table.apply(&add(ONE, None), at(0)).unwrap();
    let kept: Vec<_> =
        table.take_changed().into_iter().filter_map(|(mac, record)| Some((mac, record?))).collect();
    let bytes = serde_json::to_vec(&kept[0].1).unwrap();
    let mut table = Table::of(vec![(ONE, serde_json::from_slice(&bytes).unwrap())], 0, WATCH, at(0));
    assert_eq!(table.fixed(), [(ONE, fixed)].into());
    assert_eq!(table.list(at(0)).machines[0].address, Some(fixed));
    table.apply(&add(ONE, Some(Ipv4Addr::UNSPECIFIED)), at(0)).unwrap();
    assert!(table.fixed().is_empty());
    table.apply(&add(TWO, Some(fixed)), at(0)).unwrap();
}
