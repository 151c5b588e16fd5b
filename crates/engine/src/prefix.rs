//! The prefix cache: keys and values of sequences that began alike, kept for those that will.
//!
//! A tree of pages. A node has the tokens of one page and the page of every layer; where a sequence ended, the last node has
//! fewer tokens. What is kept are the pages themselves, which sequences share until one writes to them, so taking and giving
//! copies nothing, and what comes after a hit has the bits of a cold start.
//!
//! A sliding layer needs the pages of its window only, and a sequence has given up the others by the time it is kept: a node may
//! lack them, and a drafter's. A hit is as long as what is needed is there. When there are more bytes than may be kept, the leaf that
//! nobody has used for longest goes first.

use glimmer_backend::{Backend, PAGE};
use glimmer_model::kv_pages::KvPages;
use glimmer_model::muse::TextCache;
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
}

/// What the prefix cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixUsage {
    /// Pages of sequences.
    pub pages: usize,
    /// Bytes of keys and values; those that a running sequence shares are counted.
    pub bytes: u64,
    /// Bytes that may be kept.
    pub limit: u64,
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
    bytes: u64,
    used: u64,
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
    /// An empty cache that keeps up to `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { nodes: Vec::new(), roots: Vec::new(), limit, bytes: 0, clock: 0 }
    }

    /// What is kept.
    pub fn usage(&self) -> PrefixUsage {
        PrefixUsage { pages: self.nodes.iter().flatten().count(), bytes: self.bytes, limit: self.limit }
    }

    /// Bytes that may be kept.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The longest beginning of `tokens`, no longer than `most`, that is kept and that a sequence like `cache` can go on from.
    pub fn find(&mut self, tokens: &[u32], most: usize, cache: &TextCache<B>) -> Option<Hit<B>> {
        let mut found = self.alike(&tokens[..most.min(tokens.len())]);
        found.sort_by_key(|(_, len)| std::cmp::Reverse(*len));
        let (path, len) = found.into_iter().find(|(path, len)| self.suffices(path, *len, cache))?;
        self.clock += 1;
        for &node in &path {
            if let Some(node) = &mut self.nodes[node] {
                node.used = self.clock;
            }
        }
        Some(self.hit(&path, len, cache))
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
            pages.all(|page| self.page(path, page).is_some_and(|node| node.target[i].is_some()))
        })
    }

    fn page(&self, path: &[usize], page: usize) -> Option<&Node<B>> {
        self.nodes[*path.get(page)?].as_ref()
    }

    fn hit(&self, path: &[usize], len: usize, cache: &TextCache<B>) -> Hit<B> {
        let end = len.div_ceil(PAGE);
        let layers = cache.layers().iter().enumerate();
        let target = layers.map(|(i, layer)| {
            let pages = layer.first_page(len)..end;
            pages.filter_map(|page| self.page(path, page)?.target[i].clone()).collect()
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
    pub fn keep(
        &mut self,
        tokens: &[u32],
        cache: &TextCache<B>,
        drafter: Option<Observed<'_, B>>,
        page_bytes: [u64; 2],
    ) {
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
            let Some(node) = &mut self.nodes[at] else { return };
            node.used = self.clock;
            // What was there is as good as what comes, bit by bit; only what lacked is taken.
            node.target.resize_with(target.len(), || None);
            node.target.iter_mut().zip(target).for_each(|(had, new)| {
                if had.is_none() {
                    *had = new;
                }
            });
            if let Some(pages) = pages.filter(|_| node.drafter.is_empty() || from < node.observed) {
                (node.drafter, node.observed) = (pages, from);
            }
            let held = node.target.iter().flatten().count() as u64;
            self.bytes -= node.bytes;
            node.bytes = held * page_bytes[0] + node.drafter.len() as u64 * page_bytes[1];
            self.bytes += node.bytes;
            parent = Some(at);
        }
        self.shrink();
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
            let lacking = || node.target.iter().zip(target).any(|(had, new)| had.is_some() && new.is_none());
            if tokens.starts_with(&node.tokens) && !lacking() {
                self.remove(at);
            }
        }
        let node = Node {
            tokens: tokens.to_vec(),
            parent,
            children: Vec::new(),
            target: Vec::new(),
            drafter: Vec::new(),
            observed: 0,
            bytes: 0,
            used: self.clock,
        };
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
        if let Some(node) = self.nodes[at].take() {
            self.bytes -= node.bytes;
            self.siblings(node.parent).retain(|&child| child != at);
        }
    }

    /// Gives up leaves until no more is kept than may be.
    fn shrink(&mut self) {
        while self.bytes > self.limit {
            let nodes = self.nodes.iter().enumerate();
            let leaves =
                nodes.filter_map(|(at, node)| Some((at, node.as_ref()?))).filter(|(_, n)| n.children.is_empty());
            match leaves.min_by_key(|(_, node)| node.used).map(|(at, _)| at) {
                Some(at) => self.remove(at),
                None => return,
            }
        }
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
