//! What is pure: percentiles, summaries, cases, arrivals, prompts, the plot.

use std::time::Duration;

use super::arguments;
use crate::commands::bench::plan::{self, Case, Load, arrivals};
use crate::commands::bench::plot;
use crate::commands::bench::prompt::Prompts;
use crate::commands::bench::report::Report;
use crate::commands::bench::sample::{Sample, Taken};
use crate::commands::bench::summary::{Percentiles, Summary};
use crate::commands::bench::target::Target;

fn ms(times: &[u64]) -> Vec<Duration> {
    times.iter().map(|t| Duration::from_millis(*t)).collect()
}

fn case() -> Case {
    Case { load: Load::Closed { connections: 2 }, prompt_words: 8 }
}

#[test]
fn percentiles_are_of_the_nearest_rank() {
    let all: Vec<u64> = (1..=100).rev().collect();
    let of = |times: &[u64]| {
        let p = Percentiles::of(ms(times).into_iter());
        (p.p50, p.p90, p.p99)
    };
    assert_eq!(of(&all), (Some(50.0), Some(90.0), Some(99.0)));
    assert_eq!(of(&[7]), (Some(7.0), Some(7.0), Some(7.0)));
    assert_eq!(of(&[1, 2]), (Some(1.0), Some(2.0), Some(2.0)));
    assert_eq!(of(&[]), (None, None, None));
}

#[test]
fn a_summary_counts_what_came_while_requests_were_sent() {
    let sample = |due: u64, parts: &[u64], ended: u64, tokens: Option<u64>| Sample {
        due: Duration::from_millis(due),
        parts: ms(parts),
        ended: Duration::from_millis(ended),
        prompt_tokens: Some(10),
        completion_tokens: tokens,
        error: None,
    };
    let failed = |error: &str| Sample { error: Some(error.to_owned()), ..Sample::default() };
    let taken = Taken {
        samples: vec![
            // Two tokens in each of its two parts.
            sample(100, &[200, 300], 310, Some(4)),
            // Half of it comes after the end; the server counts nothing.
            sample(900, &[950, 1150], 1160, None),
            failed("503: full"),
            failed("503: full"),
            failed("cut"),
        ],
        length: Duration::from_secs(1),
    };
    let summary = Summary::of(case(), &taken);
    assert_eq!((summary.answered, summary.failed), (2, 3));
    assert_eq!(
        summary.errors.into_iter().collect::<Vec<_>>(),
        [("503: full".to_owned(), 2), ("cut".to_owned(), 1)]
    );
    assert_eq!((summary.requests_per_second, summary.tokens_per_second), (1.0, 5.0));
    assert_eq!((summary.prompt_tokens, summary.completion_tokens), (Some(10.0), Some(4.0)));
    assert_eq!((summary.first_token_ms.p50, summary.first_token_ms.p99), (Some(50.0), Some(100.0)));
    assert_eq!((summary.between_tokens_ms.p50, summary.between_tokens_ms.p99), (Some(100.0), Some(200.0)));
    assert_eq!((summary.whole_ms.p50, summary.whole_ms.p99), (Some(210.0), Some(260.0)));
}

#[test]
fn kinds_of_errors_have_a_bound() {
    let failed = |n: u64| Sample { error: Some(format!("error {n}")), ..Sample::default() };
    let taken = Taken { samples: (0..100).map(failed).collect(), length: Duration::from_secs(1) };
    let summary = Summary::of(case(), &taken);
    assert_eq!((summary.errors.len(), summary.errors["other errors"]), (21, 80));
}

#[test]
fn cases_are_every_load_with_every_prompt() {
    let shown = |words: &[&str]| -> Vec<String> {
        plan::cases(&arguments(words)).expect("cases").iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        shown(&["--concurrency", "1,8", "--prompt-words", "16,32"]),
        [
            "1 connection, prompts of 16 words",
            "1 connection, prompts of 32 words",
            "8 connections, prompts of 16 words",
            "8 connections, prompts of 32 words"
        ]
    );
    assert_eq!(shown(&["--rate", "0.5"]), ["0.5 requests/s, prompts of 128 words"]);
    assert_eq!(shown(&[]).len(), 3);
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    for (words, part) in [
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "5000"], "4096"),
        (["--rate", "0"], "--rate"),
        (["--rate", "1e9"], "50000 at most"),
        (["--rate", "NaN"], "--rate"),
        (["--seconds", "0"], "--seconds"),
        (["--deadline", "inf"], "--deadline"),
        (["--prompt-words", "0"], "--prompt-words"),
        (["--max-tokens", "0"], "--max-tokens"),
    ] {
        let error = plan::cases(&arguments(&words)).expect_err("refused").to_string();
        assert!(error.contains(part), "{words:?}: {error}");
    }
}

#[test]
fn arrivals_come_by_chance_at_the_rate_and_the_same_for_a_seed() {
    let minute = Duration::from_secs(60);
    let first = arrivals(100.0, minute, 7);
    assert_eq!(first, arrivals(100.0, minute, 7));
    assert_ne!(first, arrivals(100.0, minute, 8));
    assert!(first.is_sorted() && first.last().is_some_and(|last| *last < minute));
    // 6,000 are expected, with a standard deviation of 77.
    assert!((5600..6400).contains(&first.len()), "{}", first.len());
    // Of exponential pauses, 1 - 1/e (63 %) are shorter than the mean.
    let pauses: Vec<Duration> = first.windows(2).map(|p| p[1] - p[0]).collect();
    let short = pauses.iter().filter(|p| **p < Duration::from_millis(10)).count();
    assert!((60..67).contains(&(short * 100 / pauses.len())), "{short} of {}", pauses.len());
}

#[test]
fn prompts_have_their_length_and_differ() {
    let prompts = Prompts::new(1);
    let (one, two) = (prompts.text(50, 1), prompts.text(50, 2));
    assert_eq!(one.split(' ').count(), 50);
    assert_eq!(one, Prompts::new(1).text(50, 1));
    assert_ne!(one, two);
    assert_ne!(one, Prompts::new(2).text(50, 1));
}

#[test]
fn the_plot_has_every_case_and_no_markup_of_others() {
    let arguments = arguments(&["--concurrency", "1,2"]);
    let target = Target::new("http://127.0.0.1:1", &arguments).expect("an address");
    let mut report = Report::new(&target, "a<b>&c", &arguments);
    let sample = Sample { parts: ms(&[10, 20]), ended: Duration::from_millis(20), ..Sample::default() };
    let taken = Taken { samples: vec![sample], length: Duration::from_secs(1) };
    for case in plan::cases(&arguments).expect("cases") {
        report.cases.push(Summary::of(case, &taken));
    }
    let svg = plot::svg(&report).expect("a plot");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for word in
        ["1 connection,", "2 connections,", "p50", "p99", "time to the first token", "a&lt;b&gt;&amp;c"]
    {
        assert!(svg.contains(word), "{word} is not in {svg}");
    }
    // Nothing answered: still a plot.
    report.cases.iter_mut().for_each(|case| case.first_token_ms = Percentiles::default());
    assert!(plot::svg(&report).is_ok());
}
