//! The order of the ways to run a model. Pure.
//!
//! 1. What the operator set (`engine`, `engine@version`, devices) rules out everything else.
//! 2. Of two engines the better score wins, where each of them has one; otherwise the order in which they come: the model's
//!    first runtime, then the newest version.
//! 3. Of one engine: the newest version, on the kind of device it likes best, there on the one with the most free memory.
//! 4. What failed its trial with this model comes last.
//!
//! **How scores compare.** A score stands for the time of a reference answer:
//!
//! ```text
//! seconds = first_token_ms / 1000 + REFERENCE_TOKENS / tokens_per_second
//! ```
//!
//! The shortest time wins. Those within [`SAME_PERCENT`] of the shortest count as equally fast, and of them the one that
//! takes the least memory wins. The rest is ordered again by the same rule.

use node_api::Score;

/// Tokens of the reference answer: a few paragraphs.
pub const REFERENCE_TOKENS: f64 = 256.0;
/// Times that differ by less are noise.
pub const SAME_PERCENT: f64 = 5.0;
/// Engines measured with one model before its first request is served, at most: each costs a load.
pub const MEASURED_AT_ONCE_MAX: usize = 4;

/// One way to run a model. They come in the order of the model's runtimes, then newest versions first, then in the order in
/// which the engine likes the devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    pub engine: String,
    pub version: String,
    pub device: String,
    pub kind: String,
    /// Bytes that could be granted there now.
    pub free: u64,
    /// Its trial with this model failed: why.
    pub failed: Option<String>,
    pub known: Option<Known>,
}

/// What is known of how well an engine runs a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Known {
    /// Of this build.
    Own(Score),
    /// Of another build of the same engine.
    Other { version: String, score: Score },
}

impl Known {
    pub fn score(&self) -> Score {
        match self {
            Known::Own(score) | Known::Other { score, .. } => *score,
        }
    }
}

/// What the operator set.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish<'a> {
    /// `llama-cpp` or `llama-cpp@1.2.0`.
    pub engine: Option<&'a str>,
    /// Ids; none: all.
    pub devices: &'a [String],
}

impl Wish<'_> {
    fn allows(&self, way: &Way) -> bool {
        let engine = self.engine.is_none_or(|wanted| match wanted.split_once('@') {
            Some((id, version)) => way.engine == id && way.version == version,
            None => way.engine == wanted,
        });
        engine && (self.devices.is_empty() || self.devices.contains(&way.device))
    }
}

/// A place in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranked {
    /// Position in what was given.
    pub way: usize,
    pub reason: String,
}

/// The best first. Nothing is left of what the operator set: the reason, with what there is.
pub fn order(ways: &[Way], wish: &Wish<'_>) -> Result<Vec<Ranked>, String> {
    let allowed: Vec<usize> = (0..ways.len()).filter(|way| wish.allows(&ways[*way])).collect();
    if allowed.is_empty() {
        return Err(nothing_left(ways, wish));
    }
    let (failed, good): (Vec<usize>, Vec<usize>) =
        allowed.into_iter().partition(|way| ways[*way].failed.is_some());
    let mut engines = group(ways, &good);
    let measured = engines.len() > 1 && engines.iter().all(|engine| engine.known(ways).is_some());
    if measured {
        sort_by_score(ways, &mut engines);
    }
    let mut ranked = Vec::with_capacity(ways.len());
    for (place, engine) in engines.iter().enumerate() {
        for way in &engine.ways {
            let reason = reason(ways, engine, *way, place, measured, engines.len(), wish);
            ranked.push(Ranked { way: *way, reason });
        }
    }
    ranked.extend(failed.into_iter().map(|way| {
        let why = ways[way].failed.as_deref().unwrap_or_default();
        Ranked { way, reason: format!("failed its trial: {why}") }
    }));
    Ok(ranked)
}

/// Which engines to measure first, as positions in `ordered`: each that has no score, where there is another to compare it
/// with and the operator has not decided.
pub fn unmeasured(ways: &[Way], ordered: &[Ranked], wish: &Wish<'_>) -> Vec<usize> {
    let good: Vec<usize> =
        ordered.iter().map(|ranked| ranked.way).filter(|way| ways[*way].failed.is_none()).collect();
    let engines = group(ways, &good);
    if engines.len() < 2 || wish.engine.is_some() {
        return Vec::new();
    }
    let open = engines.iter().filter(|engine| engine.known(ways).is_none());
    open.filter_map(|engine| ordered.iter().position(|ranked| Some(&ranked.way) == engine.ways.first()))
        .take(MEASURED_AT_ONCE_MAX)
        .collect()
}

/// Seconds of the reference answer; infinite for what is no score.
pub fn reference_seconds(score: &Score) -> f64 {
    let seconds = score.first_token_ms / 1000.0 + REFERENCE_TOKENS / score.tokens_per_second;
    let valid = score.tokens_per_second > 0.0 && score.first_token_ms >= 0.0 && seconds.is_finite();
    if valid { seconds } else { f64::INFINITY }
}

/// All ways of one engine, the best first.
#[derive(Debug)]
struct EngineWays {
    ways: Vec<usize>,
}

impl EngineWays {
    /// Of the best way: another kind of device says little of this one.
    fn known<'a>(&self, ways: &'a [Way]) -> Option<&'a Known> {
        self.ways.first().and_then(|way| ways[*way].known.as_ref())
    }

    fn seconds(&self, ways: &[Way]) -> f64 {
        self.known(ways).map_or(f64::INFINITY, |known| reference_seconds(&known.score()))
    }

    fn memory(&self, ways: &[Way]) -> u64 {
        self.known(ways).map_or(u64::MAX, |known| known.score().memory)
    }
}

/// By engine, in the order in which they come.
fn group(ways: &[Way], of: &[usize]) -> Vec<EngineWays> {
    let mut engines: Vec<EngineWays> = Vec::new();
    for way in of {
        match engines.iter_mut().find(|engine| ways[engine.ways[0]].engine == ways[*way].engine) {
            Some(engine) => engine.ways.push(*way),
            None => engines.push(EngineWays { ways: vec![*way] }),
        }
    }
    for engine in &mut engines {
        // First places decide: which version comes first, and which kind of device a version names first.
        let first = |matches: &dyn Fn(&Way) -> bool| ways.iter().position(matches).unwrap_or(usize::MAX);
        engine.ways.sort_by_key(|way| {
            let way = &ways[*way];
            let same_version = |other: &Way| other.engine == way.engine && other.version == way.version;
            let version = first(&same_version);
            let kind = first(&|other| same_version(other) && other.kind == way.kind);
            (version, kind, std::cmp::Reverse(way.free))
        });
    }
    engines
}

fn sort_by_score(ways: &[Way], engines: &mut Vec<EngineWays>) {
    let mut sorted = Vec::with_capacity(engines.len());
    while !engines.is_empty() {
        let shortest = engines.iter().map(|engine| engine.seconds(ways)).fold(f64::INFINITY, f64::min);
        let limit = shortest * (1.0 + SAME_PERCENT / 100.0);
        let best = engines
            .iter()
            .enumerate()
            .filter(|(_, engine)| engine.seconds(ways) <= limit)
            .min_by_key(|(position, engine)| (engine.memory(ways), *position))
            .map_or(0, |(position, _)| position);
        sorted.push(engines.remove(best));
    }
    *engines = sorted;
}

fn reason(
    ways: &[Way],
    engine: &EngineWays,
    way: usize,
    place: usize,
    measured: bool,
    engines: usize,
    wish: &Wish<'_>,
) -> String {
    let (this, best) = (&ways[way], &ways[engine.ways[0]]);
    if this.version != best.version {
        return format!("older than {}", best.version);
    }
    if this.kind != best.kind {
        return format!("{} before {}", best.kind, this.kind);
    }
    if way != engine.ways[0] {
        return format!("more memory is free on {}", best.device);
    }
    if wish.engine.is_some() || !wish.devices.is_empty() {
        return "set by the operator".to_owned();
    }
    let of_older = match &this.known {
        Some(Known::Other { version, .. }) => format!(", measured with {version}"),
        _ => String::new(),
    };
    match (measured, place, engines) {
        (_, _, 1) => "newest version".to_owned(),
        (true, 0, _) => format!("best score{of_older}"),
        (true, _, _) => format!("lower score{of_older}"),
        (false, 0, _) if this.known.is_none() => "newest version, not measured yet".to_owned(),
        (false, 0, _) => "newest version, others are not measured yet".to_owned(),
        (false, _, _) if this.known.is_none() => "not measured yet".to_owned(),
        (false, _, _) => "others are not measured yet".to_owned(),
    }
}

fn nothing_left(ways: &[Way], wish: &Wish<'_>) -> String {
    let mut wanted = Vec::new();
    wanted.extend(wish.engine.map(|engine| format!("engine {engine}")));
    if !wish.devices.is_empty() {
        wanted.push(format!("devices {}", wish.devices.join(", ")));
    }
    let have: Vec<String> =
        ways.iter().map(|way| format!("{} {} on {}", way.engine, way.version, way.device)).collect();
    let have = if have.is_empty() { "nothing".to_owned() } else { have.join(", ") };
    format!("set for this model: {}; what could run it here: {have}", wanted.join(" and "))
}

#[cfg(test)]
mod tests;
