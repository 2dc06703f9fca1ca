//! The seven smaller tables.

use super::{SUPPLIERS_OF_A_PART, Sizes, order_key, price_cents, put_date, supplier_of};
use crate::data::words::Soup;
use crate::data::{Numbered, Random, Rows, put};

pub(super) const NATIONS: u64 = 25;
pub(super) const REGIONS: u64 = 5;

const REGION: [&str; REGIONS as usize] = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "OCEANIA"];
/// Five of each region, in the regions' order.
const NATION: [&str; NATIONS as usize] = [
    "GHANA",
    "KENYA",
    "MALI",
    "NAMIBIA",
    "TUNISIA",
    "BOLIVIA",
    "CANADA",
    "CHILE",
    "CUBA",
    "PANAMA",
    "BHUTAN",
    "INDIA",
    "JAPAN",
    "LAOS",
    "NEPAL",
    "AUSTRIA",
    "FINLAND",
    "ITALY",
    "PORTUGAL",
    "SLOVENIA",
    "AUSTRALIA",
    "FIJI",
    "NEW ZEALAND",
    "SAMOA",
    "TONGA",
];
const PRIORITY: [&str; 5] = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-LOW", "5-NONE"];
const SEGMENT: [&str; 5] = ["BUILDING", "FARMING", "FURNITURE", "MACHINERY", "VEHICLES"];
const KIND: [&str; 4] = ["STANDARD", "SMALL", "LARGE", "PROMO"];
const FINISH: [&str; 4] = ["PLATED", "POLISHED", "BRUSHED", "RAW"];
const METAL: [&str; 4] = ["TIN", "STEEL", "BRASS", "COPPER"];
const SIZE: [&str; 4] = ["SM", "MED", "LG", "JUMBO"];
const CONTAINER: [&str; 4] = ["BOX", "BAG", "DRUM", "JAR"];

pub(super) fn orders(sizes: Sizes, seed: u64) -> Box<dyn Rows> {
    let (soup, clerks) = (Soup::new(seed), (sizes.suppliers / 10).max(1));
    Box::new(Numbered::new(0..sizes.orders, move |nth, out| {
        let random = &mut Random::at(seed, 41, nth);
        let customer = 1 + random.below(sizes.customers);
        put(out, format_args!("{}\t{customer}\t{}\t", order_key(nth), random.pick(&["F", "O"])));
        money(out, 100_000 + random.below(40_000_000));
        put_date(out, random.below(2406));
        let clerk = 1 + random.below(clerks);
        put(out, format_args!("{}\tClerk#{clerk:09}\t0\t", random.pick(&PRIORITY)));
        remark(out, random, &soup, 19..79);
    }))
}

pub(super) fn partsupp(sizes: Sizes, seed: u64) -> Box<dyn Rows> {
    let soup = Soup::new(seed);
    Box::new(Numbered::new(0..sizes.parts * SUPPLIERS_OF_A_PART, move |nth, out| {
        let random = &mut Random::at(seed, 42, nth);
        let part = nth / SUPPLIERS_OF_A_PART + 1;
        let supplier = supplier_of(part, nth % SUPPLIERS_OF_A_PART, sizes.suppliers);
        put(out, format_args!("{part}\t{supplier}\t{}\t", 1 + random.below(9999)));
        money(out, 100 + random.below(99_901));
        remark(out, random, &soup, 49..199);
    }))
}

pub(super) fn part(sizes: Sizes, seed: u64) -> Box<dyn Rows> {
    let soup = Soup::new(seed);
    Box::new(Numbered::new(1..sizes.parts + 1, move |part, out| {
        let random = &mut Random::at(seed, 43, part);
        put(out, format_args!("{part}\t{}\t", words(random, &soup, 25..55)));
        let (maker, brand) = (1 + random.below(5), 1 + random.below(5));
        put(out, format_args!("Manufacturer#{maker}\tBrand#{maker}{brand}\t"));
        let (kind, finish) = (random.pick(&KIND), random.pick(&FINISH));
        put(out, format_args!("{kind} {finish} {}\t", random.pick(&METAL)));
        let size = random.pick(&SIZE);
        put(out, format_args!("{}\t{size} {}\t", 1 + random.below(50), random.pick(&CONTAINER)));
        money(out, price_cents(part));
        remark(out, random, &soup, 5..23);
    }))
}

pub(super) fn customer(sizes: Sizes, seed: u64) -> Box<dyn Rows> {
    let soup = Soup::new(seed);
    Box::new(Numbered::new(1..sizes.customers + 1, move |customer, out| {
        let random = &mut Random::at(seed, 44, customer);
        put(out, format_args!("{customer}\tCustomer#{customer:09}\t"));
        reached(out, random, &soup);
        put(out, format_args!("{}\t", random.pick(&SEGMENT)));
        remark(out, random, &soup, 29..117);
    }))
}

pub(super) fn supplier(sizes: Sizes, seed: u64) -> Box<dyn Rows> {
    let soup = Soup::new(seed);
    Box::new(Numbered::new(1..sizes.suppliers + 1, move |supplier, out| {
        let random = &mut Random::at(seed, 45, supplier);
        put(out, format_args!("{supplier}\tSupplier#{supplier:09}\t"));
        reached(out, random, &soup);
        remark(out, random, &soup, 25..101);
    }))
}

pub(super) fn nation(_: Sizes, seed: u64) -> Box<dyn Rows> {
    let soup = Soup::new(seed);
    Box::new(Numbered::new(0..NATIONS, move |nation, out| {
        let region = nation / (NATIONS / REGIONS);
        put(out, format_args!("{nation}\t{}\t{region}\t", NATION[nation as usize]));
        remark(out, &mut Random::at(seed, 46, nation), &soup, 31..115);
    }))
}

pub(super) fn region(_: Sizes, seed: u64) -> Box<dyn Rows> {
    let soup = Soup::new(seed);
    Box::new(Numbered::new(0..REGIONS, move |region, out| {
        put(out, format_args!("{region}\t{}\t", REGION[region as usize]));
        remark(out, &mut Random::at(seed, 47, region), &soup, 31..115);
    }))
}

/// Address, nation, telephone and balance of a customer or a supplier.
fn reached(out: &mut Vec<u8>, random: &mut Random, soup: &Soup) {
    put(out, format_args!("{}\t", words(random, soup, 10..40)));
    let nation = random.below(NATIONS);
    let number = [random.below(900), random.below(900), random.below(9000)];
    put(
        out,
        format_args!(
            "{nation}\t{}-{:03}-{:03}-{:04}\t",
            10 + nation,
            100 + number[0],
            100 + number[1],
            1000 + number[2]
        ),
    );
    let sign = if random.percent(9.0) { "-" } else { "" };
    put(out, format_args!("{sign}"));
    money(out, random.below(999_999));
}

fn money(out: &mut Vec<u8>, cents: u64) {
    put(out, format_args!("{}.{:02}\t", cents / 100, cents % 100));
}

/// The last field: so many bytes of words.
fn remark(out: &mut Vec<u8>, random: &mut Random, soup: &Soup, bytes: std::ops::Range<u64>) {
    put(out, format_args!("{}\n", words(random, soup, bytes)));
}

/// Words of at least `bytes.start` and fewer than `bytes.end` bytes, or a space or two fewer.
fn words<'a>(random: &mut Random, soup: &'a Soup, bytes: std::ops::Range<u64>) -> &'a str {
    let bytes = bytes.start + random.below(bytes.end - bytes.start);
    soup.cut(random, bytes as usize).trim()
}
