/* How fast the block bookkeeping of a KV cache can be: flat arrays, one thread, nothing else.
 *
 * The yardstick for Quire's own figures. It owns a pool of 100,000 blocks of 16 tokens, an index from chained
 * 64-bit keys to blocks, and one list of free blocks in eviction order. It has no tiers, no groups, no events,
 * no errors and no bindings. A hit is confirmed on the block's tokens.
 *
 *   cc -O3 -march=native -o floor floor.c
 *   ./floor                  one round: prints one line of JSON
 *   ./floor --rounds 5       waits for a line on stdin before each round, so that rounds of several programs can
 *                            be interleaved; ends after 5 rounds or at the end of stdin
 *
 * Each figure is the minimum over the repeats of a round, in microseconds. All repeats of a row do the same
 * work: what a repeat published is taken back, or the pool is built again.
 *
 *   cold_8k       key, match, allocate and publish a prompt of 8,192 tokens of which nothing is cached
 *   hit90_8k      the same, the first 7,360 tokens cached
 *   full_8k       as cold_8k, but no block is unused: each new block evicts the least recently used one
 *   admit_64x8k   64 prompts of 8,192 tokens, the first half of each cached, every new block evicts; first all
 *                 are matched and held, then all are allocated and published
 *   decode_1024   one token for each of 1,024 sequences: append it, publish the 64 blocks that fill up, allocate
 *                 64 blocks and write them in the table
 *   decode_1024_open   the same without publishing
 *   release_8k    give back a sequence of 512 published blocks
 *
 * Before each row: 50 system prompts (32 blocks) x 40 conversations (40 blocks each), and three documents of
 * 57, 460 and 7,372 blocks; 89,489 blocks cached and idle. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint64_t u64;
typedef uint32_t u32;

enum {
    BLOCK = 16,           /* tokens */
    POOL = 100000,        /* blocks; block 0 is the head of the free list and no block */
    INDEX = 1 << 18,
    PROMPT = 8192,        /* tokens */
    PROMPT_BLOCKS = PROMPT / BLOCK,
    LONGEST = 7372,       /* blocks */
    TABLE_WIDTH = 80,     /* blocks of a decoding sequence */
    NUM_REQUESTS = 64,    /* admitted together */
    NUM_SEQUENCES = 1024, /* decoding together */
    REPEATS = 61,
    ADMIT_REPEATS = 4,    /* as many as evict conversations only */
    STEPS = 96,
};

/* ---- the cache: one array per attribute of a block -------------------------------------------------------- */

static u64 key[POOL + 1];             /* 0: not published */
static int32_t tokens[POOL + 1][BLOCK];
static u32 newer[POOL + 1], older[POOL + 1]; /* the free list, a ring through block 0: newer[0] is evicted first */
static int32_t holders[POOL + 1];
static u32 slots[INDEX];              /* block ids, open addressing, linear probing; 0: empty */
static u64 num_evicted;

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "floor: %s\n", what);
        exit(1);
    }
}

static u64 fold(u64 a, u64 b) {
    __uint128_t product = (__uint128_t)a * b;
    return (u64)product ^ (u64)(product >> 64);
}

/* Only the last multiplication waits for the parent, so the blocks of a prompt overlap in the pipeline. */
static u64 key_of(u64 parent, const int32_t *block) {
    u64 w[8];
    memcpy(w, block, sizeof w);
    u64 content = fold(w[0] ^ 0x8f1bbcdc2f6a4e35u, w[1] ^ 0xa54ff53a5f1d36f1u) +
                  fold(w[2] ^ 0x5be0cd19137e2179u, w[3] ^ 0x9b05688c2b3e6c1fu) +
                  fold(w[4] ^ 0xd1310ba698dfb5acu, w[5] ^ 0x2ffd72dbd01adfb7u) +
                  fold(w[6] ^ 0xb8e1afed6a267e96u, w[7] ^ 0xba7c9045f12c7f99u);
    u64 chained = fold(content ^ 0x24a19947b3916cf7u, parent ^ 0x0801f2e2858efc16u);
    return chained ? chained : 1;
}

static void unlink_free(u32 block) {
    newer[older[block]] = newer[block];
    older[newer[block]] = older[block];
}

static void link_first(u32 block) {
    newer[block] = newer[0];
    older[block] = 0;
    older[newer[0]] = block;
    newer[0] = block;
}

static void link_last(u32 block) {
    newer[block] = 0;
    older[block] = older[0];
    newer[older[0]] = block;
    older[0] = block;
}

/* The slot that holds the block with this key and these tokens, or the empty slot where it belongs. */
static u32 *slot_of(u64 wanted, const int32_t *content) {
    for (u32 at = wanted & (INDEX - 1);; at = (at + 1) & (INDEX - 1)) {
        u32 block = slots[at];
        if (!block || (key[block] == wanted && !memcmp(tokens[block], content, sizeof tokens[block])))
            return &slots[at];
    }
}

/* Makes the block findable; one that is there already keeps its place and this one stays private. */
static void publish(u32 block, u64 its_key) {
    u32 *slot = slot_of(its_key, tokens[block]);
    if (!*slot) {
        *slot = block;
        key[block] = its_key;
    }
}

/* Linear probing without tombstones: later entries of the run move up into the hole when they may. */
static void unpublish(u32 block) {
    u32 hole = key[block] & (INDEX - 1);
    while (slots[hole] != block) hole = (hole + 1) & (INDEX - 1);
    for (u32 at = (hole + 1) & (INDEX - 1); slots[at]; at = (at + 1) & (INDEX - 1)) {
        u32 home = key[slots[at]] & (INDEX - 1);
        if (((at - home) & (INDEX - 1)) >= ((at - hole) & (INDEX - 1))) {
            slots[hole] = slots[at];
            hole = at;
        }
    }
    slots[hole] = 0;
    key[block] = 0;
}

static u32 take(void) {
    u32 block = newer[0];
    require(block != 0, "the pool is empty");
    unlink_free(block);
    if (key[block]) {
        unpublish(block);
        num_evicted++;
    }
    holders[block] = 1;
    return block;
}

/* ---- sequences -------------------------------------------------------------------------------------------- */

typedef struct {
    int length; /* tokens */
    int hit;    /* blocks */
    u64 *keys;  /* of its full blocks */
    u32 *row;   /* its block table */
} Sequence;

/* Phase 1: keys, walk, hold. The block of the last token is never taken from the cache. */
static void match(Sequence *s, const int32_t *prompt, int length) {
    int num_full = length / BLOCK, most = (length - 1) / BLOCK;
    u64 parent = 1;
    for (int i = 0; i < num_full; i++) {
        s->keys[i] = parent = key_of(parent, prompt + i * BLOCK);
        __builtin_prefetch(&slots[parent & (INDEX - 1)]);
    }
    s->length = length;
    for (s->hit = 0; s->hit < most && s->hit < num_full; s->hit++) {
        u32 block = *slot_of(s->keys[s->hit], prompt + s->hit * BLOCK);
        if (!block) break;
        if (holders[block]++ == 0) unlink_free(block);
        s->row[s->hit] = block;
    }
}

/* Phase 2: a block for the rest of the prompt; full ones are published. */
static void fill(Sequence *s, const int32_t *prompt) {
    for (int i = s->hit; i * BLOCK < s->length; i++) {
        int num_tokens = s->length - i * BLOCK;
        u32 block = s->row[i] = take();
        if (num_tokens >= BLOCK) {
            memcpy(tokens[block], prompt + i * BLOCK, sizeof tokens[block]);
            publish(block, s->keys[i]);
        } else {
            memcpy(tokens[block], prompt + i * BLOCK, num_tokens * sizeof(int32_t));
        }
    }
}

static int num_blocks(const Sequence *s) { return (s->length + BLOCK - 1) / BLOCK; }

/* The deepest block is evicted first; a block without a key is worth nothing and goes to the front. */
static void release(Sequence *s) {
    for (int i = num_blocks(s); i--;) {
        u32 block = s->row[i];
        if (--holders[block] > 0) continue;
        if (key[block])
            link_last(block);
        else
            link_first(block);
    }
}

/* Not timed. Makes the blocks a released sequence allocated unused again, in the order they were taken. */
static void take_back(Sequence *s) {
    for (int i = num_blocks(s); i-- > s->hit;) {
        u32 block = s->row[i];
        if (key[block]) unpublish(block);
        unlink_free(block);
        link_first(block);
    }
}

/* A decoding batch: its tokens live in its blocks, so appending one is a single store. */
static int32_t lengths[NUM_SEQUENCES];
static u32 last_block[NUM_SEQUENCES], table[NUM_SEQUENCES][TABLE_WIDTH];
static u64 last_key[NUM_SEQUENCES]; /* of the last full block */

static void decode_step(const int32_t *sampled, int publishes) {
    for (int i = 0; i < NUM_SEQUENCES; i++) {
        u32 offset = (u32)lengths[i] % BLOCK;
        if (offset == 0) last_block[i] = table[i][lengths[i] / BLOCK] = take();
        tokens[last_block[i]][offset] = sampled[i];
        lengths[i]++;
        if (offset == BLOCK - 1 && publishes) {
            last_key[i] = key_of(last_key[i], tokens[last_block[i]]);
            publish(last_block[i], last_key[i]);
        }
    }
}

/* ---- the workload ----------------------------------------------------------------------------------------- */

static int32_t prompt[LONGEST * BLOCK], many[NUM_REQUESTS][PROMPT], document[PROMPT];
static u64 long_keys[LONGEST], keys[NUM_REQUESTS][PROMPT_BLOCKS];
static u32 long_row[LONGEST], rows[NUM_REQUESTS][PROMPT_BLOCKS];
static Sequence one = {0, 0, long_keys, long_row}, batch[NUM_REQUESTS];
static const int document_blocks[3] = {1024 * 9 / 10 / BLOCK, PROMPT * 9 / 10 / BLOCK, LONGEST};

/* Text number `seed`: the same tokens each time, 10 to 127,999. */
static void write_text(int32_t *out, u64 seed, int length) {
    u64 state = fold(seed + 0x9e3779b97f4a7c15u, 0xd6e8feb86659fd93u) | 1;
    for (int i = 0; i < length; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        out[i] = 10 + (int32_t)((state >> 20) % 127990);
    }
}

static void write_conversation(int32_t *out, int system, int conversation) {
    write_text(out, 1000 + system, 32 * BLOCK);
    write_text(out + 32 * BLOCK, 10000 + system * 100 + conversation, 40 * BLOCK);
}

static void cache(const int32_t *text, int length) {
    match(&one, text, length);
    fill(&one, text);
    release(&one);
}

static void build(void) {
    memset(key, 0, sizeof key);
    memset(holders, 0, sizeof holders);
    memset(slots, 0, sizeof slots);
    for (u32 i = 0; i <= POOL; i++) {
        newer[i] = (i + 1) % (POOL + 1);
        older[i] = (i + POOL) % (POOL + 1);
    }
    for (int system = 0; system < 50; system++)
        for (int conversation = 0; conversation < 40; conversation++) {
            write_conversation(prompt, system, conversation);
            cache(prompt, 72 * BLOCK);
        }
    for (int i = 0; i < 3; i++) {
        write_text(prompt, 777000 + i, document_blocks[i] * BLOCK);
        if (i == 1) memcpy(document, prompt, document_blocks[i] * BLOCK * sizeof(int32_t));
        cache(prompt, document_blocks[i] * BLOCK);
    }
    int cached = 0;
    for (u32 i = 1; i <= POOL; i++) cached += key[i] != 0;
    require(cached == 89489, "89,489 blocks should be cached");
}

/* ---- the rows --------------------------------------------------------------------------------------------- */

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec * 1e-3;
}

static void keep_least(double *least, double started) {
    double spent = now_us() - started;
    if (*least == 0 || spent < *least) *least = spent;
}

/* Admits `prompt` and releases it again, expecting so many hit and evicted blocks. */
static void admit_one(int hit, u64 evicted, double *admitted, double *released) {
    u64 before = num_evicted;
    double started = now_us();
    match(&one, prompt, PROMPT);
    fill(&one, prompt);
    keep_least(admitted, started);
    require(one.hit == hit && num_evicted - before == evicted, "a prompt hit or evicted other than planned");
    started = now_us();
    release(&one);
    keep_least(released, started);
}

static void run_single(double *cold, double *hit90, double *released) {
    double unused = 0;
    build();
    for (int i = 0; i < REPEATS; i++) {
        write_text(prompt, 900000 + i, PROMPT);
        admit_one(0, 0, cold, released);
        take_back(&one);
    }
    for (int i = 0, known = document_blocks[1] * BLOCK; i < REPEATS; i++) {
        memcpy(prompt, document, known * sizeof(int32_t));
        write_text(prompt + known, 950000 + i, PROMPT - known);
        admit_one(document_blocks[1], 0, hit90, &unused);
        take_back(&one);
    }
}

static void run_full(double *full) {
    double unused = 0;
    build();
    for (int i = 0; key[newer[0]] == 0; i++) {
        write_text(prompt, 2000000 + i, PROMPT / 2);
        cache(prompt, PROMPT / 2);
    }
    for (int i = 0; i < REPEATS; i++) {
        write_text(prompt, 3000000 + i, PROMPT);
        admit_one(0, PROMPT_BLOCKS, full, &unused);
    }
}

static void run_admit(double *admit) {
    build();
    for (int i = 0; i < NUM_REQUESTS; i++) {
        batch[i] = (Sequence){0, 0, keys[i], rows[i]};
        write_text(many[i], 4000000 + i, PROMPT / 2);
        cache(many[i], PROMPT / 2);
    }
    for (int repeat = 0; repeat < ADMIT_REPEATS; repeat++) {
        for (int i = 0; i < NUM_REQUESTS; i++)
            write_text(many[i] + PROMPT / 2, 5000000 + repeat * NUM_REQUESTS + i, PROMPT / 2);
        u64 before = num_evicted;
        double started = now_us();
        for (int i = 0; i < NUM_REQUESTS; i++) match(&batch[i], many[i], PROMPT);
        for (int i = 0; i < NUM_REQUESTS; i++) fill(&batch[i], many[i]);
        keep_least(admit, started);
        for (int i = 0; i < NUM_REQUESTS; i++) {
            require(batch[i].hit == PROMPT_BLOCKS / 2, "half of each prompt should be cached");
            release(&batch[i]);
        }
        require(num_evicted - before == NUM_REQUESTS * PROMPT_BLOCKS / 2, "every new block should evict");
    }
}

static void run_decode(double *decode, int publishes) {
    static int32_t sampled[STEPS][NUM_SEQUENCES];
    build();
    for (int i = 0; i < NUM_SEQUENCES; i++) {
        int length = 72 * BLOCK + 1 + i % BLOCK;
        write_conversation(prompt, i / 40, i % 40);
        write_text(prompt + 72 * BLOCK, 6000000 + i, BLOCK);
        match(&one, prompt, length);
        fill(&one, prompt);
        require(one.hit == 72, "a conversation should be cached");
        memcpy(table[i], one.row, num_blocks(&one) * sizeof(u32));
        lengths[i] = length;
        last_block[i] = one.row[72];
        last_key[i] = one.keys[length / BLOCK - 1];
    }
    for (int step = 0; step < STEPS; step++) write_text(sampled[step], 7000000 + step, NUM_SEQUENCES);
    for (int step = 0; step < STEPS; step++) {
        double started = now_us();
        decode_step(sampled[step], publishes);
        keep_least(decode, started);
    }
}

static void run_round(void) {
    double cold = 0, hit90 = 0, released = 0, full = 0, admit = 0, decode = 0, decode_open = 0;
    run_single(&cold, &hit90, &released);
    run_full(&full);
    run_admit(&admit);
    run_decode(&decode, 1);
    run_decode(&decode_open, 0);
    printf("{\"floor_cold_8k_us\": %.3f, \"floor_hit90_8k_us\": %.3f, \"floor_full_8k_us\": %.3f, "
           "\"floor_admit_64x8k_us\": %.3f, \"floor_decode_1024_us\": %.3f, \"floor_decode_1024_open_us\": %.3f, "
           "\"floor_release_8k_us\": %.3f}\n",
           cold, hit90, full, admit, decode, decode_open, released);
    fflush(stdout);
}

int main(int argc, char **argv) {
    char line[256];
    if (argc == 1) {
        run_round();
        return 0;
    }
    require(argc == 3 && !strcmp(argv[1], "--rounds"), "usage: floor [--rounds N]");
    for (int left = atoi(argv[2]); left > 0 && fgets(line, sizeof line, stdin); left--) run_round();
    return 0;
}
