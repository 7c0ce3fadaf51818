//! What is kept over a restart, and what a broken file does.

use super::*;

fn what(version: &str, fingerprint: &str) -> Measured {
    Measured {
        engine: "echo".into(),
        version: version.into(),
        sha256: format!("hash of {version}"),
        fingerprint: fingerprint.into(),
        device: "sim simulated device".into(),
    }
}

fn score(tokens_per_second: f64, measured_at: i64) -> Score {
    Score { tokens_per_second, first_token_ms: 1.5, memory: 7, measured_at }
}

#[tokio::test]
async fn scores_outlive_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let scores = Scores::open(dir.path());
    assert_eq!(scores.find(&what("1.0.0", "m")), None);
    scores.note(what("1.0.0", "m"), score(10.0, 1)).await;
    scores.note(what("1.0.0", "m"), score(20.0, 2)).await;
    let again = Scores::open(dir.path());
    assert_eq!(again.find(&what("1.0.0", "m")), Some(Known::Own(score(20.0, 2))));
    assert_eq!(again.find(&what("1.0.0", "another model")), None);
}

#[tokio::test]
async fn another_build_is_known_by_the_last_score_of_its_engine() {
    let dir = tempfile::tempdir().unwrap();
    let scores = Scores::open(dir.path());
    scores.note(what("1.0.0", "m"), score(10.0, 1)).await;
    scores.note(what("1.1.0", "m"), score(30.0, 2)).await;
    let expected = Known::Other { version: "1.1.0".into(), score: score(30.0, 2) };
    assert_eq!(scores.find(&what("2.0.0", "m")), Some(expected));
    // The same version with another library is another build.
    let rebuilt = Measured { sha256: "another".into(), ..what("1.1.0", "m") };
    assert!(matches!(scores.find(&rebuilt), Some(Known::Other { .. })));
}

#[tokio::test]
async fn a_broken_file_is_put_aside_and_scores_are_kept_again() {
    for broken in ["", "not json", "[{\"engine\": 1}]", "[{\"engine\":\"a\"", "\0\0\0"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), broken).unwrap();
        let scores = Scores::open(dir.path());
        assert_eq!(scores.find(&what("1.0.0", "m")), None);
        assert_eq!(std::fs::read_to_string(dir.path().join("scores.json.unreadable")).unwrap(), broken);
        scores.note(what("1.0.0", "m"), score(10.0, 1)).await;
        assert!(Scores::open(dir.path()).find(&what("1.0.0", "m")).is_some(), "{broken}");
    }
}

#[tokio::test]
async fn a_file_too_large_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(dir.path().join(FILE)).unwrap();
    file.set_len(FILE_BYTES_MAX + 1).unwrap();
    assert!(read(&dir.path().join(FILE)).unwrap_err().contains("at most"));
}

#[tokio::test]
async fn the_oldest_scores_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let scores = Scores::open(dir.path());
    {
        let mut known = scores.known();
        for n in 0..SCORES_MAX {
            known.insert(what("1.0.0", &n.to_string()), score(1.0, i64::try_from(n).unwrap()));
        }
    }
    scores.note(what("1.0.0", "new"), score(1.0, i64::MAX)).await;
    assert_eq!(scores.known().len(), SCORES_MAX);
    assert_eq!(scores.find(&what("1.0.0", "0")), None);
    assert!(scores.find(&what("1.0.0", "new")).is_some());
    assert!(read(&dir.path().join(FILE)).is_ok());
}
