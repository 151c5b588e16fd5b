//! The prefix cache: keys and values of sequences that began alike, kept for those that will.
//!
//! A tree of pages. A node has the tokens of one page and the page of every layer; where a sequence ended, the last node has
//! fewer tokens. What is kept are the pages themselves, which sequences share until one writes to them, so taking and giving
//! copies nothing, and what comes after a hit has the bits of a cold start.
//!
//! A sliding layer needs the pages of its window only, and a sequence has given up the others by the time it is kept: a node may
//! lack them, and a drafter's. A hit is as long as what is needed is there. When there are more bytes than may be kept, the leaf that
//! nobody has used for longest goes first: to a file, where there is a folder for it ([`spill`]), from where it comes back when it is
//! wanted. At the end everything goes there.

use crate::spill::{self, Entry, Key, Spill};
use glimmer_backend::{Backend, KvSpec, PAGE};
use glimmer_model::kv_pages::KvPages;
use glimmer_model::muse::TextCache;
use std::collections::HashMap;
use std::ops::Range;

/// Kept pages, as a tree over tokens.
pub struct PrefixCache<B: Backend> {
    /// `None` where a node was given up; its place is used again.
    nodes: Vec<Option<Node<B>>>,
    roots: Vec<usize>,
    /// Bytes that may be kept.
    limit: u64,
    bytes: u64,
    /// Counts uses.
    clock: u64,
    /// Shapes of pages of the target and of the drafter, and their bytes.
    specs: [KvSpec; 2],
    page_bytes: [u64; 2],
    spill: Option<Spilled>,
}

/// Nodes as files.
struct Spilled {
    files: Spill,
    bytes: u64,
    /// Why nothing is written any more.
    trouble: Option<String>,
}

/// What the prefix cache keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixUsage {
    /// Pages of sequences.
    pub pages: usize,
    /// Bytes of keys and values; those that a running sequence shares are counted.
    pub bytes: u64,
    /// Bytes that may be kept.
    pub limit: u64,
    /// Bytes of files.
    pub spilled: u64,
    /// Why no more files are written, if that is so.
    pub trouble: Option<String>,
}

struct Node<B: Backend> {
    /// A page's worth, or fewer, and then there are no children.
    tokens: Vec<u32>,
    parent: Option<usize>,
    children: Vec<usize>,
    /// Of every layer of the target, as far as it was held.
    target: Vec<Option<B::KvPage>>,
    /// Of every layer of the drafter, which has observed the page from `observed` on.
    drafter: Vec<B::KvPage>,
    observed: usize,
    /// Of the pages in memory.
    bytes: u64,
    used: u64,
    key: Key,
    /// Its file, if it has one.
    file: Option<Entry>,
}

/// What was found for a prompt.
pub struct Hit<B: Backend> {
    /// Tokens that need not be processed.
    pub len: usize,
    /// For every layer of the target, the pages that [`KvCache::adopt`](glimmer_model::kv_cache::KvCache::adopt) takes.
    target: Vec<Vec<B::KvPage>>,
    drafter: Continued<B>,
}

/// What a drafter's context can go on from.
pub struct Continued<B: Backend> {
    /// The first position that was observed.
    pub start: usize,
    /// For each layer, the page that has it, and those that follow; no layers if there is nothing.
    pub pages: Vec<Vec<B::KvPage>>,
}

/// The drafter's context of a sequence, where it has one that can be kept.
pub struct Observed<'a, B: Backend> {
    /// Its layers.
    pub layers: &'a [KvPages<B>],
    /// The positions that it observed and holds.
    pub held: Range<usize>,
}

impl<B: Backend> PrefixCache<B> {
    /// An empty cache that keeps up to `limit` bytes of pages of these shapes, the target's and the drafter's.
    pub fn new(limit: u64, specs: [KvSpec; 2], page_bytes: [u64; 2]) -> Self {
        Self { nodes: Vec::new(), roots: Vec::new(), limit, bytes: 0, clock: 0, specs, page_bytes, spill: None }
    }

    /// The same with files, and what they have already.
    pub fn spilling(self, files: Spill) -> std::io::Result<Self> {
        let mut entries = files.entries()?;
        entries.sort_by_key(|entry| entry.used);
        let root = *files.root();
        let mut cache = Self { spill: Some(Spilled { files, bytes: 0, trouble: None }), ..self };
        let mut known: HashMap<Key, Option<usize>> = HashMap::from([(root, None)]);
        // Each round takes those whose parents are there.
        loop {
            let (ready, rest): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|entry| known.contains_key(&entry.parent));
            if ready.is_empty() {
                rest.iter().for_each(|orphan| cache.forget_file(&orphan.key));
                break;
            }
            for entry in ready {
                cache.clock += 1;
                let parent = known[&entry.parent];
                let at = cache.insert(parent, entry.tokens.clone(), entry.key);
                known.insert(entry.key, Some(at));
                cache.attach(at, entry);
            }
            entries = rest;
        }
        cache.shrink_files();
        Ok(cache)
    }

    /// What is kept.
    pub fn usage(&self) -> PrefixUsage {
        PrefixUsage {
            pages: self.nodes.iter().flatten().count(),
            bytes: self.bytes,
            limit: self.limit,
            spilled: self.spill.as_ref().map_or(0, |spill| spill.bytes),
            trouble: self.spill.as_ref().and_then(|spill| spill.trouble.clone()),
        }
    }

    /// Bytes that may be kept.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The longest beginning of `tokens`, no longer than `most`, that is kept and that a sequence like `cache` can go on from.
    pub fn find(&mut self, backend: &B, tokens: &[u32], most: usize, cache: &TextCache<B>) -> Option<Hit<B>> {
        let mut found = self.alike(&tokens[..most.min(tokens.len())]);
        found.sort_by_key(|(_, len)| std::cmp::Reverse(*len));
        let (path, len) = found
            .into_iter()
            .find(|(path, len)| self.suffices(path, *len, cache) && self.fetch(backend, path, *len, cache))?;
        self.clock += 1;
        for &node in &path {
            if let Some(node) = &mut self.nodes[node] {
                node.used = self.clock;
            }
        }
        let hit = self.hit(&path, len, cache);
        self.shrink(backend);
        Some(hit)
    }

    /// Every way to pass through nodes with the first of `tokens`, the last node perhaps in part, and how many tokens that are.
    fn alike(&self, tokens: &[u32]) -> Vec<(Vec<usize>, usize)> {
        let (mut found, mut path, mut among) = (Vec::new(), Vec::new(), Some(&self.roots));
        while let Some(nodes) = among.take() {
            let start = path.len() * PAGE;
            for &at in nodes {
                let Some(node) = &self.nodes[at] else { continue };
                let count = node.tokens.iter().zip(&tokens[start..]).take_while(|(a, b)| a == b).count();
                if count > 0 {
                    found.push(([&path[..], &[at]].concat(), start + count));
                }
                if count == PAGE {
                    among = Some(&node.children);
                }
            }
            if among.is_some() {
                path.extend(found.iter().rev().find(|(_, len)| *len == start + PAGE).and_then(|(path, _)| path.last()));
            }
        }
        found
    }

    /// Whether all pages are there that a sequence of `len` tokens needs.
    fn suffices(&self, path: &[usize], len: usize, cache: &TextCache<B>) -> bool {
        cache.layers().iter().enumerate().all(|(i, layer)| {
            let mut pages = layer.first_page(len)..len.div_ceil(PAGE);
            pages.all(|page| self.page(path, page).is_some_and(|node| node.holds(i) || node.file_has(i)))
        })
    }

    /// Brings into memory what of it is in files. False if something cannot be.
    fn fetch(&mut self, backend: &B, path: &[usize], len: usize, cache: &TextCache<B>) -> bool {
        for (page, &at) in path.iter().enumerate() {
            let Some(node) = &self.nodes[at] else { return false };
            let layers = cache.layers().iter().enumerate();
            let mut wanted = layers.filter(|(_, layer)| (layer.first_page(len)..len.div_ceil(PAGE)).contains(&page));
            if wanted.all(|(i, _)| node.holds(i)) {
                continue;
            }
            if self.load(backend, at).is_none() {
                self.drop_file(at);
                return false;
            }
        }
        true
    }

    /// Adds to a node what its file has.
    fn load(&mut self, backend: &B, at: usize) -> Option<()> {
        let entry = self.nodes[at].as_ref()?.file.clone()?;
        let [target, drafter] = self.spill.as_ref()?.files.read(&entry)?;
        let make = |spec: KvSpec, bytes: Vec<u8>| backend.kv_page_of(spec, &bytes).ok().flatten();
        let mut pages = target.into_iter();
        let [of_target, of_drafter] = self.specs;
        let target: Vec<Option<B::KvPage>> = entry
            .target
            .iter()
            .map(|&had| if had { pages.next().and_then(|bytes| make(of_target, bytes)).map(Some) } else { Some(None) })
            .collect::<Option<_>>()?;
        let drafter: Vec<B::KvPage> =
            drafter.into_iter().map(|bytes| make(of_drafter, bytes)).collect::<Option<_>>()?;
        self.add(at, target, (!drafter.is_empty()).then_some((drafter, entry.observed)));
        Some(())
    }

    /// Gives a node what it lacks. What it has is as good as what comes, bit by bit.
    fn add(&mut self, at: usize, target: Vec<Option<B::KvPage>>, drafter: Option<(Vec<B::KvPage>, usize)>) {
        let Some(node) = &mut self.nodes[at] else { return };
        node.target.resize_with(target.len().max(node.target.len()), || None);
        for (had, new) in node.target.iter_mut().zip(target) {
            if had.is_none() {
                *had = new;
            }
        }
        if let Some((pages, from)) = drafter
            && (node.drafter.is_empty() || from < node.observed)
        {
            (node.drafter, node.observed) = (pages, from);
        }
        let held = node.target.iter().flatten().count() as u64;
        self.bytes -= node.bytes;
        node.bytes = held * self.page_bytes[0] + node.drafter.len() as u64 * self.page_bytes[1];
        self.bytes += node.bytes;
    }

    fn page(&self, path: &[usize], page: usize) -> Option<&Node<B>> {
        self.nodes[*path.get(page)?].as_ref()
    }

    fn hit(&self, path: &[usize], len: usize, cache: &TextCache<B>) -> Hit<B> {
        let end = len.div_ceil(PAGE);
        let layers = cache.layers().iter().enumerate();
        let target = layers.map(|(i, layer)| {
            let pages = layer.first_page(len)..end;
            pages.filter_map(|page| self.page(path, page)?.target.get(i)?.clone()).collect()
        });
        let (mut first, mut start) = (end, len);
        while let Some(node) = first.checked_sub(1).and_then(|page| self.page(path, page))
            && !node.drafter.is_empty()
            && (first == end || start.is_multiple_of(PAGE))
        {
            first -= 1;
            start = first * PAGE + node.observed;
        }
        let layers = self.page(path, first).map_or(0, |node| node.drafter.len());
        let pages = (0..layers)
            .map(|layer| (first..end).filter_map(|page| self.page(path, page)?.drafter.get(layer).cloned()).collect());
        let drafter = Continued { start, pages: pages.collect() };
        Hit { len, target: target.collect(), drafter }
    }

    /// Keeps what `cache` and the drafter hold of `tokens`, all of them.
    pub fn keep(&mut self, backend: &B, tokens: &[u32], cache: &TextCache<B>, drafter: Option<Observed<'_, B>>) {
        assert_eq!(tokens.len(), cache.len(), "the tokens of the cache");
        self.clock += 1;
        let mut parent: Option<usize> = None;
        for (page, tokens) in tokens.chunks(PAGE).enumerate() {
            let target: Vec<_> = cache.layers().iter().map(|layer| layer.pages().page(page).cloned()).collect();
            let (start, end) = (page * PAGE, page * PAGE + tokens.len());
            let observed = drafter.as_ref().filter(|of| of.held.start < end && end <= of.held.end);
            let from = observed.map_or(0, |of| of.held.start.saturating_sub(start));
            let pages: Option<Vec<_>> =
                observed.and_then(|of| of.layers.iter().map(|layer| layer.page(page).cloned()).collect());
            let at = self.place(parent, tokens, &target);
            if let Some(node) = &mut self.nodes[at] {
                node.used = self.clock;
            }
            self.add(at, target, pages.map(|pages| (pages, from)));
            parent = Some(at);
        }
        self.shrink(backend);
    }

    /// The child of `parent` with these tokens; a new one where there is none. One whose tokens are the beginning of these gives way
    /// if it has no page that the new one lacks.
    fn place(&mut self, parent: Option<usize>, tokens: &[u32], target: &[Option<B::KvPage>]) -> usize {
        let among = match parent.and_then(|parent| self.nodes[parent].as_ref()) {
            Some(parent) => parent.children.clone(),
            None => self.roots.clone(),
        };
        for at in among {
            let Some(node) = &self.nodes[at] else { continue };
            if node.tokens == tokens {
                return at;
            }
            let has = |i: usize| node.holds(i) || node.file_has(i);
            let lacking = || target.iter().enumerate().any(|(i, new)| has(i) && new.is_none());
            if tokens.starts_with(&node.tokens) && !lacking() {
                self.remove(at);
            }
        }
        let of_parent = parent.and_then(|parent| self.nodes[parent].as_ref()).map(|parent| parent.key);
        let root = self.spill.as_ref().map_or(Key::default(), |spill| *spill.files.root());
        self.insert(parent, tokens.to_vec(), spill::key(&of_parent.unwrap_or(root), tokens))
    }

    /// A new node with nothing in it.
    fn insert(&mut self, parent: Option<usize>, tokens: Vec<u32>, key: Key) -> usize {
        let (target, drafter, observed, bytes, file) = Default::default();
        let (children, used) = (Vec::new(), self.clock);
        let node = Node { tokens, parent, children, target, drafter, observed, bytes, used, key, file };
        let at = match self.nodes.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                self.nodes.push(None);
                self.nodes.len() - 1
            }
        };
        self.nodes[at] = Some(node);
        self.siblings(parent).push(at);
        at
    }

    fn siblings(&mut self, parent: Option<usize>) -> &mut Vec<usize> {
        match parent.and_then(|parent| self.nodes[parent].as_mut()) {
            Some(parent) => &mut parent.children,
            None => &mut self.roots,
        }
    }

    /// Gives up a node without children.
    fn remove(&mut self, at: usize) {
        self.drop_file(at);
        if let Some(node) = self.nodes[at].take() {
            self.bytes -= node.bytes;
            self.siblings(node.parent).retain(|&child| child != at);
        }
    }

    /// The node that was used longest ago among those that are `held` and have no child that is.
    fn oldest(&self, held: impl Fn(&Node<B>) -> bool) -> Option<usize> {
        let above = |node: &Node<B>| node.children.iter().any(|&child| self.nodes[child].as_ref().is_some_and(&held));
        let nodes = self.nodes.iter().enumerate().filter_map(|(at, node)| Some((at, node.as_ref()?)));
        let last = nodes.filter(|(_, node)| held(node) && !above(node));
        last.min_by_key(|(_, node)| node.used).map(|(at, _)| at)
    }

    /// Gives up memory until no more is kept than may be.
    fn shrink(&mut self, backend: &B) {
        while self.bytes > self.limit {
            let Some(at) = self.oldest(|node| node.bytes > 0) else { return };
            self.save(backend, at);
            self.clear(at);
        }
        self.shrink_files();
    }

    /// Gives up what a node has in memory, and itself if it is good for nothing then.
    fn clear(&mut self, at: usize) {
        let Some(node) = &mut self.nodes[at] else { return };
        self.bytes -= node.bytes;
        (node.target, node.drafter, node.bytes) = (Vec::new(), Vec::new(), 0);
        if node.file.is_none() && node.children.is_empty() {
            self.remove(at);
        }
    }

    /// Writes what a node has in memory, unless its file has that.
    fn save(&mut self, backend: &B, at: usize) {
        let (Some(node), Some(spill)) = (&self.nodes[at], &mut self.spill) else { return };
        let has = |entry: &Entry| {
            (0..node.target.len()).all(|i| !node.holds(i) || node.file_has(i))
                && (node.drafter.is_empty() || entry.drafter > 0 && entry.observed <= node.observed)
        };
        if spill.trouble.is_some() || node.file.as_ref().is_some_and(has) {
            return;
        }
        let parent = node.parent.and_then(|parent| self.nodes[parent].as_ref()).map(|parent| parent.key);
        let entry = Entry {
            key: node.key,
            parent: parent.unwrap_or(*spill.files.root()),
            tokens: node.tokens.clone(),
            target: node.target.iter().map(Option::is_some).collect(),
            drafter: node.drafter.len(),
            observed: node.observed,
            page_bytes: self.page_bytes,
            used: node.used,
        };
        let target: Vec<Vec<u8>> = node.target.iter().flatten().map(|page| backend.kv_bytes(page)).collect();
        let drafter: Vec<Vec<u8>> = node.drafter.iter().map(|page| backend.kv_bytes(page)).collect();
        match spill.files.write(&entry, [&target, &drafter]) {
            Ok(()) => self.attach(at, entry),
            Err(error) => spill.trouble = Some(error.to_string()),
        }
    }

    /// Says that a node has this file.
    fn attach(&mut self, at: usize, entry: Entry) {
        if let (Some(node), Some(spill)) = (&mut self.nodes[at], &mut self.spill) {
            spill.bytes -= node.file.as_ref().map_or(0, Entry::bytes);
            spill.bytes += entry.bytes();
            node.file = Some(entry);
        }
    }

    /// Gives up a node's file.
    fn drop_file(&mut self, at: usize) {
        let file = self.nodes[at].as_mut().and_then(|node| node.file.take());
        if let (Some(entry), Some(spill)) = (file, &mut self.spill) {
            spill.bytes -= entry.bytes();
            spill.files.remove(&entry.key);
        }
    }

    fn forget_file(&mut self, key: &Key) {
        if let Some(spill) = &self.spill {
            spill.files.remove(key);
        }
    }

    /// Gives up files until there are no more bytes of them than may be.
    fn shrink_files(&mut self) {
        while self.spill.as_ref().is_some_and(|spill| spill.bytes > spill.files.limit()) {
            let Some(at) = self.oldest(|node| node.file.is_some()) else { return };
            self.drop_file(at);
            if self.nodes[at].as_ref().is_some_and(|node| node.bytes == 0 && node.children.is_empty()) {
                self.remove(at);
            }
        }
    }

    /// Writes everything that is in memory, what was used last at the end.
    pub fn flush(&mut self, backend: &B) {
        let nodes = self.nodes.iter().enumerate().filter_map(|(at, node)| Some((node.as_ref()?.used, at)));
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort_unstable();
        for (_, at) in nodes {
            self.save(backend, at);
        }
        self.shrink_files();
    }
}

impl<B: Backend> Node<B> {
    /// Whether the page of a layer is in memory.
    fn holds(&self, layer: usize) -> bool {
        self.target.get(layer).is_some_and(Option::is_some)
    }

    fn file_has(&self, layer: usize) -> bool {
        self.file.as_ref().is_some_and(|entry| entry.target.get(layer) == Some(&true))
    }
}

impl<B: Backend> Hit<B> {
    /// Lets an empty `cache` go on from here, and gives what the drafter's context can go on from.
    pub fn adopt(self, cache: &mut TextCache<B>) -> Continued<B> {
        for (layer, pages) in cache.layers_mut().iter_mut().zip(self.target) {
            layer.adopt(self.len, pages);
        }
        self.drafter
    }
}
