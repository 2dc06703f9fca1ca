//! x
use pgspate::copy::*; use pgspate::format::*; use pgspate::format::delimited::*; use pgspate::target::{*, connect::Connection}; use pgspate::encode::field::FieldEncoder; use std::sync::Arc;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dsn = a[1].clone();
    let (t, s) = rt.block_on(async { let c = Connection::open(&dsn).await.unwrap(); (Table::read(&c.client, &a[2]).await.unwrap().unwrap(), Session::read(&c.client).await.unwrap()) });
    let chunk: usize = a[4].parse::<usize>().unwrap() << 20; let lanes: usize = a[5].parse().unwrap();
    let n = t.columns.len();
    let path = a[3].clone();
    let map: MapFields = Arc::new(move |_, _| Ok((n, (0..n).collect())));
    let cutter = DelimitedCutter::new(Box::new(std::iter::once(Ok(OpenInput{index:0,name:path.clone(),reader:Box::new(std::fs::File::open(&path).unwrap())}))), Dialect::csv(), true, chunk, map);
    let cols: Vec<_> = t.columns.iter().map(|c| pgspate::format::delimited::Column{name:c.name.clone(), encoder: FieldEncoder::new(&c.ty,&s).ok(), force_null:false, force_not_null:false}).collect();
    let v = s.server_version;
    let names = t.columns.iter().map(|c| c.name.clone()).collect::<Vec<_>>().join(",");
    let job = Job { connect: Arc::new(move || { let d = dsn.clone(); Box::pin(async move { Connection::open(&d).await }) }), encoder: Box::new(move || Box::new(DelimitedEncoder::new(Dialect::csv(), cols.clone(), v))),
      binary_sql: format!("copy {} ({names}) from stdin (format binary)", t.sql_name), text_sql: format!("copy {} ({names}) from stdin", t.sql_name), mode: Mode::Binary, one_statement:false, lanes: Lanes::Fixed(lanes), input_names: vec![], may_drop_rows:false };
    let p = Progress::default();
    let st = std::time::Instant::now();
    match run(&job, Box::new(cutter), &p, rt.handle()) { Ok(End::Done(o)) => println!("{:?} {o:?}", st.elapsed()), Ok(_) => println!("conflict"), Err(e) => println!("{e} {e:?}") }
}
