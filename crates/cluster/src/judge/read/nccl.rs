//! nccl-tests' table.

use super::super::lines::{short, whole};
use super::super::model::{Counts, Figure, Kind, MARKS, Said, Section};
use super::{Line, Run, Scan};

pub(super) fn line(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text.trim();
    let place = scan.place(line);
    if let Some(name) = named(text) {
        let said = Said { text: name.to_owned(), place: place.clone() };
        if text.contains("concluded") {
            scan.collective = None;
            let run = scan.open(Kind::Alltoall, line);
            called(run, said);
        } else {
            scan.collective = Some(said);
        }
    }
    let Some(comment) = text.strip_prefix('#') else { return row(scan, line) };
    let comment = comment.trim_start();
    if comment.starts_with("nThread ") && comment.contains("minBytes ") {
        let again = scan.current().kind == Kind::Alltoall && !scan.current().figures.is_empty();
        let run = if again { scan.another(Kind::Alltoall, line) } else { scan.open(Kind::Alltoall, line) };
        if again {
            run.versions.remove("collective");
        }
        if whole(comment, "validation: ") == Some(0) {
            run.tests.unverified = Some(Said { text: short(comment), place });
        }
        return true;
    }
    // Rank  0 Group  0 Pid 4711 on  host-a device  0 [0000:18:00] NVIDIA H100 80GB HBM3
    if comment.starts_with("Rank ") && comment.contains(" Pid ") {
        let rank = whole(comment, "Rank ");
        let host = comment.split(" on ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let run = scan.open(Kind::Alltoall, line);
        if let (Some(rank), Some(host)) = (rank, host) {
            if run.origins.len() < super::super::model::KEPT {
                run.origins.insert(host.to_owned());
            }
            run.settings.ranks_listed = Some(run.settings.ranks_listed.unwrap_or(0) + 1);
            let ranks = run.settings.ranks.unwrap_or(0).max(rank.saturating_add(1));
            run.settings.ranks = Some(ranks);
            run.settings.nodes = Some(run.origins.len() as u64);
        }
        return true;
    }
    if comment.starts_with("Out of bounds values") {
        let run = scan.open(Kind::Alltoall, line);
        if comment.contains("FAILED") {
            run.tests.wrong.push(Said { text: short(comment), place });
        } else if comment.contains("OK") {
            run.tests.verified = Some(run.figures.len() as u64);
        }
        return true;
    }
    if comment.starts_with("Avg bus bandwidth") {
        let run = scan.open(Kind::Alltoall, line);
        run.ended = Some(place.clone());
        if comment.contains("FAILED") {
            run.tests.wrong.push(Said { text: short(comment), place });
        }
        return true;
    }
    false
}

/// The collective that a line names: a command line or the line at the end.
fn named(text: &str) -> Option<&'static str> {
    ["alltoall", "all_reduce", "all_gather", "reduce_scatter", "sendrecv", "broadcast"].into_iter().find(
        |name| {
            text.find(name)
                .and_then(|at| text.get(at + name.len()..))
                .is_some_and(|rest| rest.starts_with("_perf"))
        },
    )
}

/// The collective of a run; two names for one table are none that can be judged.
fn called(run: &mut Run, said: Said) {
    match run.versions.get_mut("collective") {
        Some(known) if known.text != said.text && !run.figures.is_empty() => {
            known.text = format!("{} or {}", known.text, said.text);
        }
        _ => {
            run.versions.insert("collective".to_owned(), said);
        }
    }
}

/// Bytes of an element.
fn width(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "int8" | "uint8" | "f8e4m3" | "f8e5m2" | "fp8_e4m3" | "fp8_e5m2" => 1,
        "half" | "bfloat16" => 2,
        "float" | "int32" | "uint32" => 4,
        "double" | "int64" | "uint64" => 8,
        _ => return None,
    })
}

/// `size count type redop root time algbw busbw #wrong` and the same in place.
fn row(scan: &mut Scan, line: &Line<'_>) -> bool {
    let words: Vec<&str> = line.text.split_whitespace().collect();
    let [size, count, dtype, _redop, root, time, alg, bus, wrong, ..] = words.as_slice() else {
        return false;
    };
    let (Ok(size), Ok(_), Ok(_), Ok(time), Ok(alg), Ok(bus)) = (
        size.parse::<u64>(),
        count.parse::<u64>(),
        root.parse::<i64>(),
        time.parse::<f64>(),
        alg.parse::<f64>(),
        bus.parse::<f64>(),
    ) else {
        return false;
    };
    if !dtype.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return false;
    }
    let place = scan.place(line);
    let collective = scan.collective.take();
    let run = scan.open(Kind::Alltoall, line);
    let in_place = words.get(12).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    let bad = wrong.parse::<f64>().is_ok_and(|wrong| wrong > 0.0) || in_place > 0.0;
    if bad && run.tests.wrong.len() < MARKS {
        run.tests.wrong.push(Said { text: short(line.text), place: place.clone() });
    }
    if let Some(named) = collective {
        called(run, named);
    }
    run.tests.begun += 1;
    run.tests.passed += u64::from(!bad && wrong.parse::<f64>().is_ok());
    // The count is of what goes to one rank.
    if let (Ok(count), Some(bytes)) = (count.parse::<u64>(), width(dtype))
        && size >= 1 << 20
        && count > 0
    {
        run.settings.ranks_of_rows = Some(size / count / bytes);
    }
    let details = [("size".to_owned(), size.to_string())].into();
    run.figure(Figure {
        section: Section::Collective,
        op: "alltoall".to_owned(),
        counts: Counts::Bus,
        value: bus,
        beside_gb_s: Some(alg),
        time_us: Some(time),
        details,
        place,
        ..Figure::default()
    });
    true
}
