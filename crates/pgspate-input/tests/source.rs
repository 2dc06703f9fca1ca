//! Tests of inputs from the file system and from pipes, through the public interface.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use pgspate_base::{Error, ErrorKind};
use pgspate_input::source::{Compression, Input, SourceOptions, resolve};
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn resolve_all(specs: &[&str]) -> Result<Vec<Input>, Error> {
    let specs: Vec<String> = specs.iter().map(|spec| (*spec).to_owned()).collect();
    resolve(&specs, &SourceOptions::default(), runtime().handle().clone())
}

fn names(dir: &Path, specs: &[&str]) -> Vec<String> {
    let root = format!("{}/", dir.display());
    let specs: Vec<String> = specs.iter().map(|spec| format!("{root}{spec}")).collect();
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    let inputs = resolve_all(&specs).unwrap();
    inputs.iter().map(|input| input.name().strip_prefix(&root).unwrap().to_owned()).collect()
}

fn refusal(spec: &str) -> Error {
    resolve_all(&[spec]).map(|found| found.len()).unwrap_err()
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(data).unwrap();
    out.finish().unwrap()
}

/// Returns rows of text that do not compress well.
fn rows(bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 32);
    let mut i = 0u64;
    while out.len() < bytes {
        writeln!(out, "{i},{}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
        i += 1;
    }
    out
}

fn read_all(input: &Input) -> Vec<u8> {
    let mut out = Vec::new();
    input.reader().unwrap().read_to_end(&mut out).unwrap();
    out
}

fn read_in_pieces(input: &Input, max: usize) -> Vec<u8> {
    let mut reader = input.reader().unwrap();
    let mut out = Vec::new();
    loop {
        let before = out.len();
        let count = reader.read_into(&mut out, max).unwrap();
        assert_eq!(out.len() - before, count);
        assert!(count <= max);
        if count == 0 {
            return out;
        }
    }
}

fn example_folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in
        ["b.csv", "a.csv", "c.txt", ".hidden.csv", "_SUCCESS", "sub/d.csv", "sub/.git/x.csv"]
    {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    dir
}

#[test]
fn a_folder_gives_all_visible_files_sorted_by_path() {
    let dir = example_folder();
    assert_eq!(names(dir.path(), &["sub"]), ["sub/d.csv"]);
    let root = dir.path().to_str().unwrap();
    let found = resolve_all(&[root]).unwrap();
    let found: Vec<_> =
        found.iter().map(|input| input.name().strip_prefix(root).unwrap()).collect();
    assert_eq!(found, ["/a.csv", "/b.csv", "/c.txt", "/sub/d.csv"]);
}

#[test]
fn patterns_match_within_a_folder_or_across_folders() {
    let dir = example_folder();
    assert_eq!(names(dir.path(), &["*.csv"]), ["a.csv", "b.csv"]);
    assert_eq!(names(dir.path(), &["**/*.csv"]), ["a.csv", "b.csv", "sub/d.csv"]);
    assert_eq!(names(dir.path(), &["[bc].*"]), ["b.csv", "c.txt"]);
    assert_eq!(names(dir.path(), &["s*/?.csv"]), ["sub/d.csv"]);
    assert_eq!(names(dir.path(), &["{sub/d,b}.csv"]), ["b.csv", "sub/d.csv"]);
    assert_eq!(names(dir.path(), &[".hid*"]), [".hidden.csv"]);
    assert_eq!(names(dir.path(), &["c.*", "a.csv"]), ["c.txt", "a.csv"]);
    fs::write(dir.path().join("odd[1].csv"), "").unwrap();
    assert_eq!(names(dir.path(), &["odd[1].csv"]), ["odd[1].csv"]);
}

#[test]
fn links_are_followed_but_not_in_circles_and_each_file_is_found_once() {
    let dir = example_folder();
    symlink(dir.path(), dir.path().join("sub/up")).unwrap();
    symlink(dir.path().join("a.csv"), dir.path().join("sub/link.csv")).unwrap();
    symlink(dir.path().join("a.csv"), dir.path().join("sub/again.csv")).unwrap();
    assert_eq!(names(dir.path(), &["sub/*.csv"]), ["sub/again.csv", "sub/d.csv"]);
    assert_eq!(names(dir.path(), &["**/*.csv"]), ["a.csv", "b.csv", "sub/d.csv"]);
    symlink("/nowhere/at/all", dir.path().join("sub/z.csv")).unwrap();
    let error = refusal(dir.path().join("sub").to_str().unwrap());
    assert!(error.to_string().ends_with("sub/z.csv\" does not exist"), "{error}");
}

#[test]
fn missing_files_are_errors() {
    let dir = example_folder();
    let at = |name: &str| format!("{}/{name}", dir.path().display());
    fs::create_dir(dir.path().join("empty")).unwrap();
    for (spec, message) in [
        (at("no.csv"), format!("\"{}\" does not exist", at("no.csv"))),
        (at("no*.csv"), format!("no files match \"{}\"", at("no*.csv"))),
        (at("no/*.csv"), format!("no files match \"{}\"", at("no/*.csv"))),
        (at("empty"), format!("no files in folder \"{}\"", at("empty"))),
    ] {
        let error = refusal(&spec);
        assert_eq!((error.to_string(), error.kind()), (message, ErrorKind::Source));
    }
}

/// The files of such tables also have rows that were deleted or replaced.
#[test]
fn folders_of_other_table_formats_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let at = |name: &str| format!("{}/{name}", root.display());
    for file in [
        "delta/_delta_log/0.json",
        "delta/year=2024/month=1/a.parquet",
        "hudi/.hoodie/hoodie.properties",
        "hudi/day=1/.hoodie_partition_metadata",
        "hudi/day=1/a.parquet",
        "ice/metadata/v1.metadata.json",
        "ice/data/day=1/a.parquet",
        "plain/metadata/notes.json",
        "plain/data/a.csv",
    ] {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), "x").unwrap();
    }
    for (folder, table, format) in [
        ("delta", "delta", "a Delta Lake table"),
        ("delta/year=2024", "delta", "a Delta Lake table"),
        ("delta/year=2024/month=1", "delta", "a Delta Lake table"),
        ("hudi", "hudi", "a Hudi table"),
        ("hudi/day=1", "hudi", "a Hudi table"),
        ("ice", "ice", "an Iceberg table"),
        ("ice/data", "ice", "an Iceberg table"),
        ("ice/data/day=1", "ice", "an Iceberg table"),
    ] {
        let error = refusal(&at(folder));
        let expected = match folder == table {
            true => format!("\"{}\" is {format}", at(table)),
            false => format!("\"{}\" is a folder of \"{}\", {format}", at(folder), at(table)),
        };
        assert_eq!(error.to_string(), expected);
    }
    symlink(root.join("delta/year=2024"), root.join("link")).unwrap();
    assert!(refusal(&at("link")).to_string().ends_with("a Delta Lake table"));
    assert!(refusal(&at("")).to_string().ends_with(" table"));
    // Patterns and the metadata itself are read.
    assert_eq!(names(&root, &["ice/**/*.parquet"]), ["ice/data/day=1/a.parquet"]);
    assert_eq!(names(&root, &["delta/_delta_log"]), ["delta/_delta_log/0.json"]);
    assert_eq!(names(&root, &["ice/metadata"]), ["ice/metadata/v1.metadata.json"]);
    assert_eq!(names(&root, &["plain"]), ["plain/data/a.csv", "plain/metadata/notes.json"]);
}

#[test]
fn invalid_sources_are_usage_errors() {
    let dir = example_folder();
    let a = dir.path().join("a.csv");
    let a = a.to_str().unwrap();
    let pattern = format!("{}/*.csv", dir.path().display());
    for (specs, message) in [
        (vec!["-", "-"], "standard input is named more than once".to_owned()),
        (vec![a, &pattern], format!("\"{a}\" is named more than once")),
        (vec!["ftp://h/x"], "sources of kind \"ftp://\" are not supported".to_owned()),
        (vec!["s3:///key"], "\"s3:///key\" has no bucket".to_owned()),
        (vec!["s3://a b/key"], "\"a b\" is not a valid bucket name".to_owned()),
        (vec!["s3://b?c/key"], "\"b?c\" is not a valid bucket name".to_owned()),
        (vec![""], "a source has an empty name".to_owned()),
        (vec!["x[.csv"], "\"x[.csv\" is not a valid pattern".to_owned()),
    ] {
        let error = resolve_all(&specs).unwrap_err();
        assert_eq!((error.to_string(), error.kind()), (message, ErrorKind::Usage));
    }
    let store = vec![("regoin".into(), "x".into())];
    let options = SourceOptions { store, ..SourceOptions::default() };
    let error = resolve(&[a.to_owned()], &options, runtime().handle().clone()).unwrap_err();
    assert_eq!(error.to_string(), "no source of this command has an option \"regoin\"");
}

#[test]
fn a_plain_file_is_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let data = rows(3_000_000);
    fs::write(dir.path().join("a.CSV"), &data).unwrap();
    let url = format!("file://{}/a.CSV", dir.path().display());
    let input = resolve_all(&[&url]).unwrap().remove(0);
    assert_eq!(input.extension().as_deref(), Some("csv"));
    assert_eq!(input.stored_bytes(), Some(data.len() as u64));
    assert_eq!(input.compression().unwrap(), Compression::None);
    assert!(!input.is_stream());
    assert!(input.fingerprint().unwrap().starts_with(&format!("{}:", data.len())));
    assert!(read_all(&input) == data);
    assert!(read_in_pieces(&input, 1_000_001) == data);
    assert_eq!(input.peek(10).unwrap(), &data[..10]);
    let reader = input.reader().unwrap();
    assert_eq!(reader.progress().stored(), 0);
    assert_eq!(reader.progress().total(), Some(data.len() as u64));
}

#[test]
fn a_compressed_file_is_detected_by_its_bytes_and_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let data = rows(3_000_000);
    let stored = gzip(&data);
    // The name does not show the compression.
    let path = dir.path().join("a.csv");
    fs::write(&path, &stored).unwrap();
    let input = resolve_all(&[path.to_str().unwrap()]).unwrap().remove(0);
    assert_eq!(input.compression().unwrap(), Compression::Gzip);
    assert_eq!(input.peek(100).unwrap(), &data[..100]);
    assert!(read_in_pieces(&input, 700_001) == data);
    let mut reader = input.reader().unwrap();
    let progress = reader.progress();
    let mut out = Vec::new();
    reader.read_to_end(&mut out).unwrap();
    assert!(out == data);
    assert_eq!(reader.compression().name(), "gzip");
    assert_eq!(progress.stored(), stored.len() as u64);
    assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn an_error_comes_after_all_earlier_data_and_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let data = rows(2_500_000);
    let mut stored = gzip(&data);
    stored.truncate(stored.len() - 1000);
    let path = dir.path().join("cut.csv.gz");
    fs::write(&path, &stored).unwrap();
    let input = resolve_all(&[path.to_str().unwrap()]).unwrap().remove(0);
    let mut reader = input.reader().unwrap();
    let mut out = Vec::new();
    let error = loop {
        match reader.read_into(&mut out, 1 << 20) {
            Ok(count) => assert_ne!(count, 0, "a cut file must not just end"),
            Err(error) => break pgspate_input::source::read_error(error, "other"),
        }
    };
    assert!(out.len() > 2_400_000 && data.starts_with(&out));
    assert_eq!(error.to_string(), format!("gzip data ends early at byte {}", stored.len()));
    assert_eq!(error.place().unwrap().source.as_deref(), path.to_str());
    for _ in 0..3 {
        let again = reader.read_into(&mut out, 10).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
        assert!(reader.read(&mut [0; 8]).is_err());
    }
}

#[test]
fn a_file_that_is_truncated_while_it_is_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    fs::write(&path, rows(1_000_000)).unwrap();
    let input = resolve_all(&[path.to_str().unwrap()]).unwrap().remove(0);
    let mut reader = input.reader().unwrap();
    let mut out = Vec::new();
    reader.read_into(&mut out, 100).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(500).unwrap();
    let error = reader.read_to_end(&mut out).unwrap_err();
    assert!(error.to_string().contains("was cut to 500 of"), "{error}");
}

/// A file that may grow is compared with the bytes that were read, and not with its first size.
#[test]
fn a_growing_file_that_is_cut_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.log");
    fs::write(&path, "1\n").unwrap();
    let options = SourceOptions { may_grow: true, ..SourceOptions::default() };
    let spec = [path.to_str().unwrap().to_owned()];
    let input = resolve(&spec, &options, runtime().handle().clone()).unwrap().remove(0);
    let mut reader = input.reader().unwrap();
    let mut out = Vec::new();
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"2\n3\n").unwrap();
    while reader.read_into(&mut out, 100).unwrap() > 0 {}
    assert_eq!(out, b"1\n2\n3\n");
    file.set_len(4).unwrap();
    let error = reader.read_into(&mut out, 100).unwrap_err();
    assert!(error.to_string().contains("was cut to 4 of 6 bytes"), "{error}");
    assert!(!input.is_replaced());
    fs::rename(&path, dir.path().join("a.log.1")).unwrap();
    assert!(!input.is_replaced());
    fs::write(&path, "4\n").unwrap();
    assert!(input.is_replaced());
}

#[test]
fn dropping_a_reader_early_ends_its_thread() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    // More data than is decompressed ahead, so that the thread waits for the reader.
    fs::write(&path, gzip(&vec![b'x'; 12 << 20])).unwrap();
    let input = resolve_all(&[path.to_str().unwrap()]).unwrap().remove(0);
    for read in [0, 1, 3_000_000] {
        let mut reader = input.reader().unwrap();
        let mut out = Vec::new();
        while out.len() < read {
            reader.read_into(&mut out, 1 << 20).unwrap();
        }
        // Dropping joins the decompression thread, so the test hangs here if the thread does not
        // end.
        drop(reader);
    }
}

#[test]
fn ranges_are_read_exactly_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = rows(100_000);
    let path = dir.path().join("a.parquet");
    fs::write(&path, &data).unwrap();
    let ranges = resolve_all(&[path.to_str().unwrap()]).unwrap()[0].ranges().unwrap();
    assert_eq!(ranges.len(), data.len() as u64);
    assert_eq!(ranges.read(5, 1000).unwrap(), &data[5..1005]);
    assert_eq!(ranges.read(data.len() as u64, 0).unwrap().len(), 0);
    for (start, len) in [(data.len() as u64 - 1, 2), (u64::MAX, 1), (0, usize::MAX)] {
        assert_eq!(ranges.read(start, len).unwrap_err().kind(), ErrorKind::Source);
    }
}

/// Returns the reading end of a pipe, a path that opens it, and the thread that writes `data` into
/// the pipe.
fn pipe(data: Vec<u8>) -> (std::io::PipeReader, String, std::thread::JoinHandle<()>) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let path = format!("/dev/fd/{}", reader.as_raw_fd());
    let thread = std::thread::spawn(move || {
        // The reader may close its end early.
        let _ = writer.write_all(&data);
    });
    (reader, path, thread)
}

#[test]
fn a_pipe_returns_peeked_bytes_again_and_is_read_only_once() {
    let data = rows(2_000_000);
    for stored in [data.clone(), gzip(&data)] {
        let (end, path, thread) = pipe(stored);
        let input = resolve_all(&[&path]).unwrap().remove(0);
        drop(end);
        drop(thread);
        assert!(input.is_stream());
        assert_eq!(input.stored_bytes(), None);
        assert_eq!(input.fingerprint(), None);
    }
    for (stored, kind) in [(data.clone(), Compression::None), (gzip(&data), Compression::Gzip)] {
        let (_end, path, thread) = pipe(stored);
        let input = resolve_all(&[&path]).unwrap().remove(0);
        assert_eq!(input.peek(7).unwrap(), &data[..7]);
        assert!(input.peek(300_000).unwrap() == data[..300_000]);
        assert_eq!(input.compression().unwrap(), kind);
        assert!(input.clone().ranges().is_err());
        assert!(read_in_pieces(&input, 1 << 20) == data);
        let error = input.reader().unwrap_err();
        assert_eq!(error.to_string(), "a pipe can be read only once");
        assert!(error.hint_text().is_some());
        assert!(input.peek(1).is_err());
        thread.join().unwrap();
    }
}

#[test]
fn an_unreadable_file_in_a_folder_is_an_error() {
    use std::os::unix::fs::PermissionsExt;
    let dir = example_folder();
    let path = dir.path().join("sub/d.csv");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let result = resolve_all(&[dir.path().to_str().unwrap()]);
    // The superuser may read everything.
    if fs::File::open(&path).is_err() {
        let error = result.unwrap_err();
        assert_eq!(error.to_string(), format!("could not open \"{}\"", path.display()));
        assert_eq!(error.kind(), ErrorKind::Source);
    } else {
        assert_eq!(result.unwrap().len(), 4);
    }
}
