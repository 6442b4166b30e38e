/*
 * state.pml - what there is: PostgreSQL, shared memory, Redis processes, messages under way.
 *
 * One key. Version 0 means "none". Numbers that the protocol never uses twice (tokens, tickets) are drawn as the
 * smallest that nobody refers to any more: equality is all that counts, and the model stays finite. The word's change
 * count likewise: each holder of a word has a bit "it is still the current one", which every change of the word clears.
 *
 * Time is what is left of a lease, in ticks: a tick takes one from every lease, reading and bound alike, so a lease ends
 * no later at the node than PostgreSQL's bound passes (the clock assumption), and anything may happen between two ticks.
 */
#ifndef NW
#define NW 2			/* writers, one transaction each */
#endif
#ifndef NR
#define NR 1			/* readers that fill the cache */
#endif
#ifndef NP
#define NP 1			/* Redis processes that exist at the same time */
#endif
#ifndef LEASE
#define LEASE 1			/* ticks */
#endif
#ifndef BULK_FROM
#define BULK_FROM NW	/* writers from here on reserve the whole domain */
#endif
#ifndef CHANGES
#define CHANGES 2		/* of the row in one transaction (SAVEPOINTS) */
#endif
#ifndef FIRST_VERSION
#define FIRST_VERSION 1
#endif
#ifndef MAX_EPOCH
#define MAX_EPOCH 3		/* the keeper opens no more than these */
#endif
#ifdef WARM
#define STORES			/* commit brings the value along */
#endif
#define IS_BULK(i) ((i) >= BULK_FROM)

/* ---- PostgreSQL: durable, and what everybody sees of it ---- */
#define IDLE 0
#define RUNNING 1
#define LOGGED 2		/* the commit record is written, but nobody sees it yet */
#define COMMITTED 3
#define ABORTED 4
#define PREPARED 5

byte row = FIRST_VERSION;	/* newest version that a snapshot taken now shows; 0: neither row nor tombstone */
byte author = 0;			/* ghost: who wrote it (writer + 1; 0: before the beginning). Tells versions used twice apart */
byte locked = 0;			/* row lock: writer + 1 */
byte fate[NW];
bit killed[NW];				/* its backend died in a crash of the server, which has seen to its fate */
byte w[NW];					/* version stored by the writer */
byte last_epoch = 1;		/* durable */
byte last_holders = 2;		/* (DISARM) durable, with the epoch: who may be given a lease of it. Bits: 1 << identity */

/* ---- shared memory of PostgreSQL ---- */
#define CLOSED 0
#define ARMING 1
#define OPEN 2
#define NO_MARKER 0
#define BYPASS 255

byte word = OPEN;
byte word_epoch = 1;
byte bound = LEASE;			/* ticks until lease_bound has passed */
bit bound_unset = 0;
bit bypassed = 0;
bit epoch_armed = 1;
byte armed_identity = 1;
byte holders = 2;			/* (DISARM) who may hold a lease */
byte marker[NW];
bit same[NW];				/* the word that the writer read is the current one */
bit ack_same[NW];			/* so is the one its acknowledgement was asked for under */
bit keeper_same;
byte ack[NW];				/* version acknowledged; 0: none */
byte sent_epoch[NW];		/* epoch named in the last reservation sent; 0: none sent */

/* ---- Redis processes ---- */
typedef Process {
	bit up;
	byte identity;
	/* volatile: library locals */
	byte epoch;				/* armed in; 0: not since it started */
	byte lease;				/* ticks left */
	bit announced;
	/* (MOVES) */
	bit serves;				/* the slot is here, as far as the node knows */
	bit granted_slot;		/* it is in the keeper's grant */
	bit had_slot;			/* and was before, in this epoch */
	bit poisoned;			/* it is out of the grant, because it was found to be away */
	bit silent;				/* (PREPARES) readers are not answered there yet: nothing was announced since it was granted */
	byte disarmed;			/* (DISARM) no grant of this epoch or an older one is taken any more */
	byte token;				/* of the domain, as it is now */
	byte pend[NW];			/* reserved version */
	byte pend_token[NW];	/* under which gen it was granted */
	bit over[NW];			/* the fence was not below it then */
	bit granted[NW];		/* (STORES) its grant number is the one that the writer has counted */
	bit dpend[NW];			/* the whole domain is reserved by that stamp */
	/* keys */
	bit exists;				/* the fence */
	byte ftoken;
	byte v;					/* 0: none, then */
	byte ticket;
	byte vtoken;			/* the value; 0: none */
	byte vversion;
	byte vauthor;			/* ghost: whose row it is */
	byte top;				/* ghost: highest v in this token */
};
Process R[NP];
#ifdef MOVES
byte leaving;				/* the slot migrates from process leaving - 1; 0: it does not */
bit job_current;			/* (PREPARES) what the announcing job will say is of the last grant */
bit listed[NW];				/* prepared, as the job has read it */
#endif
#ifdef SNAPSHOT
Process saved;				/* keys as an RDB file or a lagging replica has them */
#endif

/* ---- readers between get and put ---- */
byte r_token[NR];
byte r_ticket[NR];

#ifdef LIES
#define LIAR 250
#define LIE 250				/* a version that no row gets */
byte lies;					/* ghosts: how many there were; when the writer reserved; when one reserved that has committed */
byte lies_seen[NW];
byte lies_ended;
#endif

/* ---- messages that their sender does not wait for (any more): they arrive once, at any time, or never ---- */
#define NOTHING 0
#define COMMIT 1
#define ABORT 2
bit late_reserve[NW];
byte late_w[NW];
byte late_observed[NW];
byte late_epoch[NW];
byte end_message[NW];
byte end_epoch[NW];
