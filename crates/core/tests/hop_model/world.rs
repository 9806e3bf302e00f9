//! Nodes with one rank each, the network between them, and every step that one of them can take.

use expertrail_core::hop::immediate::{low_epoch, low_sequence};
use expertrail_core::hop::{Awaited, Channel, Immediate, Kind, Peers, Receiver, Sender};

/// Where a credit waits before it is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credits {
    /// In a lane of its own, which never waits.
    Reserved,
    /// In the lane of the chunks: a broken rule.
    Shared,
}

/// When a chunk may enter the lane, which holds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// At any time; it waits there until its slot is free.
    AtPost,
    /// When its slot is free.
    WhenReady,
    /// At any time, but chunk i of every stream before chunk i + 1 of any.
    InOrder,
}

/// What a reader of chunks needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Each chunk is read by itself, in any order: a forwarder.
    Each,
    /// The next chunk of all streams at once: a reducer without a place for partial sums.
    Joint,
}

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The calls that every node makes.
    pub calls: &'static [Channel],
    /// Chunks from every node to every other, in each call.
    pub chunks: u64,
    /// The window that senders believe in.
    pub sender_window: usize,
    /// The slots that there are.
    pub receiver_window: usize,
    /// Where credits wait.
    pub credits: Credits,
    /// When chunks enter the lane.
    pub admission: Admission,
    /// How chunks are read.
    pub reading: Reading,
    /// How many messages may be delivered twice.
    pub duplicates: u8,
    /// Which steps are taken as soon as they are possible.
    pub eager: Eager,
}

/// Steps that are taken at once, alone, when they are possible, instead of being interleaved with all others. They only
/// add to what a node may do next, and nothing that happens before them takes that away or depends on their place, so no
/// deadlock is left out. That this holds is what the exploration of two nodes without it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Eager {
    /// None: everything is interleaved.
    Nothing,
    /// Begin and end of calls as far as a node says them, and the arrival of all but chunks.
    Control,
    /// All but the choice of what enters the lane next.
    AllButLane,
}

impl Eager {
    fn takes(self, action: Action, network: &[Message]) -> bool {
        let chunk = |message: usize| network[message].immediate.kind == Kind::Chunk;
        match action {
            Action::Queue { .. } | Action::QueueCredit { .. } => false,
            Action::Begin { .. } | Action::Tell { .. } | Action::Bye { .. } => self >= Self::Control,
            Action::Deliver { message, keep: false } if !chunk(message) => self >= Self::Control,
            _ => self >= Self::AllButLane,
        }
    }
}

/// What must never happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Somebody still waits and nothing can happen.
    Deadlock,
    /// A write went to a slot or region that may still be read.
    Overwritten { what: &'static str },
    /// A message arrived where nobody has memory any more.
    Gone,
    /// A node closed while something that it sent was on its way.
    Lost { kind: Kind },
    /// A state machine refused what was right.
    Refused { why: String },
    /// A second completion was taken for a first one.
    Uncounted { kind: Kind },
    /// A message was taken for another one.
    Mistaken { kind: Kind },
    /// Chunks were not read exactly once.
    Count,
}

fn refused(error: impl std::fmt::Display) -> Violation {
    Violation::Refused { why: error.to_string() }
}

/// A message on its way. What the receiver may look at is the immediate; the rest says whether it was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    to: usize,
    immediate: Immediate,
    epoch: u64,
    sequence: u64,
    again: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start,
    Begin { node: usize },
    Queue { node: usize, to: usize },
    Post { node: usize },
    Read { node: usize, from: usize, sequence: u64 },
    ReadAll { node: usize },
    QueueCredit { node: usize },
    Tell { node: usize },
    Finish { node: usize },
    Bye { node: usize },
    Close { node: usize },
    Deliver { message: usize, keep: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Between,
    InCall,
    SaidBye,
    Closed,
}

/// What waits in the lane of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waiting {
    Chunk { to: usize },
    Credit { to: usize, channel: Channel, sequence: u64 },
}

/// What a node knows of one peer and one operation, and the truth about its slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stream {
    sender: Sender,
    receiver: Receiver,
    /// Chunks of this call that have entered the lane, and that were read.
    queued: u64,
    read: u64,
    /// First chunk of this call, to and from the peer.
    base: u64,
    /// Which slots (two at most) hold bytes that were not read; set when the write is posted, because it may land at any time.
    busy: [bool; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node<const N: usize> {
    peers: Peers,
    phase: Phase,
    told: bool,
    lane: Option<Waiting>,
    credits: Vec<Waiting>,
    /// `[peer][channel]`; the own place is there and unused.
    streams: [[Stream; 2]; N],
    /// Regions of headers and statuses that may be read, `[peer][header, status][epoch % 2]`.
    regions: [[[bool; 2]; 2]; N],
}

/// All nodes and all messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State<const N: usize> {
    nodes: [Node<N>; N],
    network: Vec<Message>,
    duplicates: u8,
    /// A duplicate was reported: the communicator is over.
    over: bool,
}

impl<const N: usize> State<N> {
    pub(crate) fn new(rules: &Rules) -> Self {
        let stream = || Stream {
            sender: Sender::new(rules.sender_window).unwrap(),
            receiver: Receiver::new(rules.receiver_window).unwrap(),
            queued: 0,
            read: 0,
            base: 0,
            busy: [false; 2],
        };
        let node = |own| Node {
            peers: Peers::new(N, own),
            phase: Phase::Between,
            told: false,
            lane: None,
            credits: Vec::new(),
            streams: std::array::from_fn(|_| [stream(), stream()]),
            regions: [[[false; 2]; 2]; N],
        };
        let nodes = std::array::from_fn(node);
        Self { nodes, network: Vec::new(), duplicates: rules.duplicates, over: false }
    }

    /// Whether all is done, or a duplicate has ended it.
    pub(crate) fn done(&self) -> bool {
        let closed = self.nodes.iter().all(|node| node.phase == Phase::Closed);
        self.over || (closed && self.network.is_empty())
    }

    /// Every step that is possible.
    pub(crate) fn actions(&self, rules: &Rules) -> Vec<Action> {
        if self.over {
            return Vec::new();
        }
        let mut actions = Vec::new();
        for node in 0..self.nodes.len() {
            self.actions_of(rules, node, &mut actions);
        }
        for message in 0..self.network.len() {
            actions.push(Action::Deliver { message, keep: false });
            if self.duplicates > 0 {
                actions.push(Action::Deliver { message, keep: true });
            }
        }
        if let Some(&first) = actions.iter().find(|&&action| rules.eager.takes(action, &self.network)) {
            return vec![first];
        }
        actions
    }

    fn actions_of(&self, rules: &Rules, own: usize, actions: &mut Vec<Action>) {
        let node = &self.nodes[own];
        let call = rules.calls.get(node.peers.epoch() as usize - 1).copied();
        let in_flight = |peer: usize| node.streams[peer].iter().map(|s| s.sender.in_flight()).sum();
        match (node.phase, call) {
            (Phase::Between, Some(_)) => actions.push(Action::Begin { node: own }),
            (Phase::Between, None) if node.peers.undrained(in_flight).next().is_none() => {
                actions.push(Action::Bye { node: own });
            }
            (Phase::InCall, Some(channel)) => self.actions_in_call(rules, own, channel, actions),
            (Phase::SaidBye, _) if node.peers.may_close(in_flight) => {
                actions.push(Action::Close { node: own });
            }
            _ => {}
        }
        let can_go = |to: usize| call.is_some_and(|c| node.streams[to][c as usize].sender.ready());
        match node.lane {
            Some(Waiting::Chunk { to }) if !can_go(to) => {}
            Some(_) => actions.push(Action::Post { node: own }),
            None if !node.credits.is_empty() => actions.push(Action::QueueCredit { node: own }),
            None => {}
        }
    }

    fn actions_in_call(&self, rules: &Rules, own: usize, channel: Channel, actions: &mut Vec<Action>) {
        let node = &self.nodes[own];
        let others = || (0..self.nodes.len()).filter(|&peer| peer != own);
        let stream = |peer: usize| &node.streams[peer][channel as usize];
        if node.lane.is_none() {
            let first = others().map(|peer| stream(peer).queued).min().unwrap_or(0);
            for to in others().filter(|&peer| stream(peer).queued < rules.chunks) {
                let admitted = match rules.admission {
                    Admission::AtPost => true,
                    Admission::WhenReady => stream(to).sender.ready(),
                    Admission::InOrder => stream(to).queued == first,
                };
                if admitted {
                    actions.push(Action::Queue { node: own, to });
                }
            }
        }
        // A forwarder needs the counts of all before it knows where rows go.
        let counts = channel == Channel::Combine || node.peers.missing(Awaited::Header).next().is_none();
        if counts && rules.reading == Reading::Each {
            for from in others() {
                for sequence in stream(from).base..stream(from).base + rules.chunks {
                    if stream(from).receiver.readable(sequence) {
                        actions.push(Action::Read { node: own, from, sequence });
                    }
                }
            }
        }
        let next = |peer: usize| stream(peer).base + stream(peer).read;
        if counts && rules.reading == Reading::Joint && others().all(|p| stream(p).receiver.readable(next(p)))
        {
            actions.push(Action::ReadAll { node: own });
        }
        let read = others().all(|peer| stream(peer).read == rules.chunks);
        let sent = others().all(|peer| stream(peer).queued == rules.chunks)
            && node.lane.is_none()
            && node.credits.is_empty();
        let dispatch = channel == Channel::Dispatch;
        if dispatch && read && !node.told {
            actions.push(Action::Tell { node: own });
        }
        if read && sent && (!dispatch || node.told) && node.peers.clone().finish(dispatch).is_ok() {
            actions.push(Action::Finish { node: own });
        }
    }

    /// Takes one of the possible steps.
    pub(crate) fn step(&mut self, rules: &Rules, action: Action) -> Result<(), Violation> {
        match action {
            Action::Start => Ok(()),
            Action::Begin { node } => {
                self.nodes[node].phase = Phase::InCall;
                self.tell(node, Kind::Header)
            }
            Action::Queue { node, to } => {
                let channel = self.channel(rules, node);
                self.nodes[node].streams[to][channel as usize].queued += 1;
                self.nodes[node].lane = Some(Waiting::Chunk { to });
                Ok(())
            }
            Action::QueueCredit { node } => {
                let node = &mut self.nodes[node];
                node.lane = Some(node.credits.remove(0));
                Ok(())
            }
            Action::Post { node } => self.post_lane(rules, node),
            Action::Read { node, from, sequence } => self.read(rules, node, from, sequence),
            Action::ReadAll { node } => {
                for from in (0..N).filter(|&peer| peer != node) {
                    let stream = &self.nodes[node].streams[from][self.channel(rules, node) as usize];
                    self.read(rules, node, from, stream.base + stream.read)?;
                }
                Ok(())
            }
            Action::Tell { node } => {
                self.nodes[node].told = true;
                self.tell(node, Kind::Status)
            }
            Action::Finish { node } => self.finish(rules, node),
            Action::Bye { node } => {
                self.nodes[node].phase = Phase::SaidBye;
                self.tell(node, Kind::Bye)
            }
            Action::Close { node } => self.close(rules, node),
            Action::Deliver { message, keep } => self.deliver(message, keep),
        }
    }

    fn channel(&self, rules: &Rules, node: usize) -> Channel {
        rules.calls[self.nodes[node].peers.epoch() as usize - 1]
    }

    /// Posts a header, status or bye to every peer.
    fn tell(&mut self, node: usize, kind: Kind) -> Result<(), Violation> {
        // A bye names the last call.
        let epoch = self.nodes[node].peers.epoch() - u64::from(kind == Kind::Bye);
        for to in (0..self.nodes.len()).filter(|&peer| peer != node) {
            if kind != Kind::Bye {
                let region = &mut self.nodes[to].regions[node][usize::from(kind == Kind::Status)];
                if std::mem::replace(&mut region[(epoch % 2) as usize], true) {
                    return Err(Violation::Overwritten { what: "region" });
                }
            }
            self.post(node, to, (kind, Channel::Dispatch), (epoch, 0));
        }
        Ok(())
    }

    fn post(
        &mut self,
        from: usize,
        to: usize,
        (kind, channel): (Kind, Channel),
        (epoch, sequence): (u64, u64),
    ) {
        let immediate = Immediate {
            kind,
            channel,
            source: from as u16,
            sequence: low_sequence(sequence),
            epoch: low_epoch(epoch),
        };
        // Through the wire form, as real ones go.
        let immediate = Immediate::decode(immediate.encode().unwrap()).unwrap();
        let message = Message { to, immediate, epoch, sequence, again: false };
        let place = self.network.partition_point(|other| *other < message);
        self.network.insert(place, message);
    }

    fn post_lane(&mut self, rules: &Rules, own: usize) -> Result<(), Violation> {
        let epoch = self.nodes[own].peers.epoch();
        match self.nodes[own].lane.take() {
            Some(Waiting::Credit { to, channel, sequence }) => {
                self.post(own, to, (Kind::Credit, channel), (epoch, sequence));
            }
            Some(Waiting::Chunk { to }) => {
                let channel = self.channel(rules, own);
                let sent = self.nodes[own].streams[to][channel as usize].sender.send();
                let sequence = sent.ok_or_else(|| refused("not ready"))?;
                let slots = &mut self.nodes[to].streams[own][channel as usize].busy;
                let slot = sequence as usize % rules.receiver_window;
                if std::mem::replace(&mut slots[slot], true) {
                    return Err(Violation::Overwritten { what: "slot" });
                }
                self.post(own, to, (Kind::Chunk, channel), (epoch, sequence));
            }
            None => {}
        }
        Ok(())
    }

    fn read(&mut self, rules: &Rules, own: usize, from: usize, sequence: u64) -> Result<(), Violation> {
        let channel = self.channel(rules, own);
        let node = &mut self.nodes[own];
        let stream = &mut node.streams[from][channel as usize];
        stream.receiver.consume(sequence).map_err(refused)?;
        stream.read += 1;
        let slot = sequence as usize % rules.receiver_window;
        if !std::mem::replace(&mut stream.busy[slot], false) {
            return Err(Violation::Count);
        }
        let epoch = node.peers.epoch();
        if rules.credits == Credits::Shared {
            node.credits.push(Waiting::Credit { to: from, channel, sequence });
        } else {
            self.post(own, from, (Kind::Credit, channel), (epoch, sequence));
        }
        Ok(())
    }

    fn finish(&mut self, rules: &Rules, own: usize) -> Result<(), Violation> {
        let channel = self.channel(rules, own);
        let node = &mut self.nodes[own];
        let epoch = node.peers.finish(channel == Channel::Dispatch).map_err(refused)?;
        node.phase = Phase::Between;
        node.told = false;
        for (peer, regions) in node.regions.iter_mut().enumerate() {
            for region in regions {
                region[(epoch % 2) as usize] = false;
            }
            if peer != own {
                let stream = &mut node.streams[peer][channel as usize];
                stream.base += rules.chunks;
                (stream.queued, stream.read) = (0, 0);
                if stream.receiver.low() != stream.base || stream.sender.next() != stream.base {
                    return Err(Violation::Count);
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, rules: &Rules, own: usize) -> Result<(), Violation> {
        let sent = |m: &&Message| m.immediate.source as usize == own && !m.again;
        let mut kinds = self.network.iter().filter(sent).map(|message| message.immediate.kind);
        if let Some(kind) = kinds.find(|&kind| kind != Kind::Bye) {
            return Err(Violation::Lost { kind });
        }
        let node = &mut self.nodes[own];
        node.phase = Phase::Closed;
        for (peer, streams) in node.streams.iter().enumerate().filter(|&(peer, _)| peer != own) {
            for (channel, stream) in Channel::ALL.iter().zip(streams) {
                let calls = rules.calls.iter().filter(|&call| call == channel).count() as u64;
                let all = calls * rules.chunks;
                if stream.receiver.low() != all || stream.sender.floor() != all || stream.busy.contains(&true)
                {
                    println!("node {own}, peer {peer}: {stream:?}");
                    return Err(Violation::Count);
                }
            }
        }
        Ok(())
    }

    fn deliver(&mut self, message: usize, keep: bool) -> Result<(), Violation> {
        let Message { to, immediate, epoch, sequence, again } = self.network.remove(message);
        let Immediate { kind, channel, source, .. } = immediate;
        if self.nodes[to].phase == Phase::Closed {
            // A second completion finds nobody to report to, and does no harm.
            return if again { Ok(()) } else { Err(Violation::Gone) };
        }
        if keep {
            self.duplicates -= 1;
            let place = self.network.partition_point(|other| (other.to, other.immediate) <= (to, immediate));
            self.network.insert(place, Message { to, immediate, epoch, sequence, again: true });
        }
        let (node, from) = (&mut self.nodes[to], source as usize);
        let stream = &mut node.streams[from][channel as usize];
        let peers = &mut node.peers;
        let counted: Result<u64, String> = match kind {
            Kind::Header => peers.header(from, immediate.epoch).map_err(|e| e.to_string()),
            Kind::Status => peers.status(from, immediate.epoch).map_err(|e| e.to_string()),
            Kind::Bye => peers.bye(from, immediate.epoch).map_err(|e| e.to_string()),
            Kind::Credit => stream.sender.credit(immediate.sequence).map_err(|e| e.to_string()),
            Kind::Chunk => match peers.chunk(from, immediate.epoch) {
                Ok(of) if of == epoch => {
                    stream.receiver.arrive(immediate.sequence).map_err(|e| e.to_string())
                }
                Ok(_) => return Err(Violation::Mistaken { kind }),
                Err(error) => Err(error.to_string()),
            },
            Kind::Poison => return Err(Violation::Mistaken { kind }),
        };
        let right = if kind.has_sequence() { sequence } else { epoch };
        match (counted, again) {
            (Ok(_), true) => Err(Violation::Uncounted { kind }),
            (Ok(number), false) if number == right => Ok(()),
            (Ok(_), false) => Err(Violation::Mistaken { kind }),
            (Err(_), true) => {
                self.over = true;
                Ok(())
            }
            (Err(why), false) => Err(Violation::Refused { why }),
        }
    }
}
