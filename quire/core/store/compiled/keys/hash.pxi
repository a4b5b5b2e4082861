# Owns: the multiply-fold, the private key of a block under its parent's key; the public event hash of a block:
# SipHash-2-4 under the cache's seed.
# Does not know: who keeps keys and hashes, what a node is, where a seed comes from.
#
#     plain    S(parent, tokens)                                       parent 8 bytes, a token 4, all little-endian
#     words    S(plain, place and words of each token that has some, 1)    8 bytes each; the odd byte sets both apart

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    #define QUIRE_K0 0x9E3779B97F4A7C15ULL
    #define QUIRE_K1 0xC2B2AE3D27D4EB4FULL
    #define QUIRE_K2 0x165667B19E3779F9ULL
    #define QUIRE_K3 0xD6E8FEB86659FD93ULL

    #if defined(__SIZEOF_INT128__)
    static inline uint64_t quire_fold(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128) a * b;
        return (uint64_t) product ^ (uint64_t) (product >> 64);
    }
    #else /* a compiler without 128-bit integers: the product from 32-bit halves */
    static inline uint64_t quire_fold(uint64_t a, uint64_t b) {
        uint64_t low = (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF), x = (a >> 32) * (b & 0xFFFFFFFF);
        uint64_t y = (a & 0xFFFFFFFF) * (b >> 32), high = (a >> 32) * (b >> 32);
        uint64_t middle = (low >> 32) + (x & 0xFFFFFFFF) + (y & 0xFFFFFFFF);
        return ((middle << 32) | (low & 0xFFFFFFFF)) ^ (high + (x >> 32) + (y >> 32) + (middle >> 32));
    }
    #endif

    #if defined(__GNUC__)
    static inline void quire_prefetch(const void *place) { __builtin_prefetch(place, 1); }
    static inline int quire_lowest(uint64_t bits) { return __builtin_ctzll(bits); }
    static inline int quire_highest(uint64_t bits) { return 63 - __builtin_clzll(bits); }
    #else
    static inline void quire_prefetch(const void *place) { (void) place; }
    static inline int quire_lowest(uint64_t bits) { int i = 0; while (!(bits >> i & 1)) i++; return i; }
    static inline int quire_highest(uint64_t bits) { int i = 63; while (!(bits >> i & 1)) i--; return i; }
    #endif

    /* Fetch a line from memory that is there, wherever it lies. Many ARM cores give a prefetch up where no address
       translation is at hand, so there it is read; on x86 a prefetch translates, and a read would hold up what follows. */
    #if defined(__x86_64__) && defined(__GNUC__)
    static inline void quire_touch(const void *place) { quire_prefetch(place); }
    #else
    static inline void quire_touch(const void *place) { (void) *(volatile const char *) place; }
    #endif

    static inline uint64_t quire_pair(const int32_t *tokens) {
        return (uint64_t) (uint32_t) tokens[0] | (uint64_t) (uint32_t) tokens[1] << 32;
    }

    #if defined(__GNUC__)
    typedef uint64_t quire_words __attribute__((vector_size(16), aligned(4), may_alias));
    static inline int quire_same16(const int32_t *a, const int32_t *b) {
        const quire_words *x = (const quire_words *) a, *y = (const quire_words *) b;
        quire_words differ = ((x[0] ^ y[0]) | (x[1] ^ y[1])) | ((x[2] ^ y[2]) | (x[3] ^ y[3]));
        return (differ[0] | differ[1]) == 0;
    }
    #else
    static inline int quire_same16(const int32_t *a, const int32_t *b) { return memcmp(a, b, 64) == 0; }
    #endif

    static inline int quire_same(const int32_t *a, const int32_t *b, Py_ssize_t n) {
        for (; n >= 16; n -= 16, a += 16, b += 16)
            if (!quire_same16(a, b)) return 0;
        for (; n > 0; n--)
            if (a[n - 1] != b[n - 1]) return 0;
        return 1;
    }

    static inline void quire_copy(int32_t *to, const int32_t *from, Py_ssize_t n) {
        if (n == 16) memcpy(to, from, 64);
        else memcpy(to, from, 4 * n);
    }

    /* The lanes take no part of the parent, so the blocks of a chain overlap; only the last fold is serial. */
    static inline uint64_t quire_key(const uint64_t *secret, uint64_t parent, const int32_t *tokens, Py_ssize_t n) {
        uint64_t a = secret[0], b = secret[1];
        Py_ssize_t i = 0;
        for (; i + 8 <= n; i += 8) {
            a = quire_fold(a ^ quire_pair(tokens + i), quire_pair(tokens + i + 2) ^ secret[2]);
            b = quire_fold(b ^ quire_pair(tokens + i + 4), quire_pair(tokens + i + 6) ^ secret[3]);
        }
        for (; i + 2 <= n; i += 2) a = quire_fold(a ^ quire_pair(tokens + i), secret[2]);
        if (i < n) b = quire_fold(b ^ (uint32_t) tokens[i], secret[3]);
        return quire_fold(parent ^ a ^ secret[4], b ^ secret[5]);
    }

    static inline void quire_keys(const uint64_t *secret, uint64_t *keys, Py_ssize_t from, Py_ssize_t to,
                                  const int32_t *tokens, Py_ssize_t size) {
        uint64_t key = from ? keys[from - 1] : 0;
        Py_ssize_t i = from;
        if (size == 16)
            for (; i < to; i++) keys[i] = key = quire_key(secret, key, tokens + 16 * i, 16);
        else
            for (; i < to; i++) keys[i] = key = quire_key(secret, key, tokens + size * i, size);
    }
    """
    const uint64_t K0 "QUIRE_K0"
    const uint64_t K1 "QUIRE_K1"
    const uint64_t K2 "QUIRE_K2"
    const uint64_t K3 "QUIRE_K3"
    uint64_t fold "quire_fold" (uint64_t a, uint64_t b) noexcept nogil
    void prefetch "quire_prefetch" (const void *place) noexcept nogil
    void touch "quire_touch" (const void *place) noexcept nogil
    int lowest_bit "quire_lowest" (uint64_t bits) noexcept nogil
    int highest_bit "quire_highest" (uint64_t bits) noexcept nogil
    bint same_tokens "quire_same" (const int32_t *a, const int32_t *b, Py_ssize_t n) noexcept nogil
    void copy_tokens "quire_copy" (int32_t *to, const int32_t *from_, Py_ssize_t n) noexcept nogil
    uint64_t pair "quire_pair" (const int32_t *tokens) noexcept nogil
    uint64_t key_of "quire_key" (const uint64_t *secret, uint64_t parent, const int32_t *tokens,
                                 Py_ssize_t n) noexcept nogil
    void keys_of "quire_keys" (const uint64_t *secret, uint64_t *keys, Py_ssize_t first, Py_ssize_t last,
                               const int32_t *tokens, Py_ssize_t size) noexcept nogil


cdef uint64_t[8] SECRET


cdef int draw_secret() except -1:
    """Keys differ from process to process: a sender that cannot guess them cannot aim at one place of the index."""
    cdef bytes seed = os.urandom(sizeof(SECRET))
    memcpy(SECRET, <const char *> seed, sizeof(SECRET))
    return 0


draw_secret()


cdef inline bint is_plain(const uint64_t *extra) noexcept nogil:
    return (extra[0] | extra[1] | extra[2]) == 0


cdef bint all_plain(const uint64_t *extras, Py_ssize_t n) noexcept nogil:
    """Whether n tokens carry no extra words."""
    cdef uint64_t seen = 0
    cdef Py_ssize_t i
    if extras != NULL:
        for i in range(3 * n):
            seen |= extras[i]
    return seen == 0


cdef uint64_t extras_key(uint64_t key, const uint64_t *extras, Py_ssize_t n) noexcept nogil:
    """The key with the extras of its tokens folded in; plain tokens add nothing."""
    cdef Py_ssize_t i
    for i in range(n):
        if not is_plain(extras + 3 * i):
            key = fold(key ^ extras[3 * i], SECRET[6] + <uint64_t> i)
            key = fold(key ^ extras[3 * i + 1], SECRET[7] ^ extras[3 * i + 2])
    return key


cdef extern from *:
    """
    typedef struct { uint64_t a, b, c, d; } quire_sip;

    static inline uint64_t quire_turn(uint64_t x, int by) { return x << by | x >> (64 - by); }

    static inline void quire_sip_round(quire_sip *s) {
        s->a += s->b; s->b = quire_turn(s->b, 13) ^ s->a; s->a = quire_turn(s->a, 32);
        s->c += s->d; s->d = quire_turn(s->d, 16) ^ s->c;
        s->a += s->d; s->d = quire_turn(s->d, 21) ^ s->a;
        s->c += s->b; s->b = quire_turn(s->b, 17) ^ s->c; s->c = quire_turn(s->c, 32);
    }

    static inline quire_sip quire_sip_open(const uint64_t *seed) {
        quire_sip s = {seed[0] ^ 0x736f6d6570736575ULL, seed[1] ^ 0x646f72616e646f6dULL,
                       seed[0] ^ 0x6c7967656e657261ULL, seed[1] ^ 0x7465646279746573ULL};
        return s;
    }

    static inline void quire_sip_put(quire_sip *s, uint64_t word) {
        s->d ^= word;
        quire_sip_round(s);
        quire_sip_round(s);
        s->a ^= word;
    }

    /* `rest` are the bytes behind the last whole word. */
    static inline uint64_t quire_sip_close(quire_sip *s, uint64_t num_bytes, uint64_t rest) {
        quire_sip_put(s, num_bytes << 56 | rest);
        s->c ^= 0xFF;
        quire_sip_round(s);
        quire_sip_round(s);
        quire_sip_round(s);
        quire_sip_round(s);
        return s->a ^ s->b ^ s->c ^ s->d;
    }

    static inline uint64_t quire_plain_hash(const uint64_t *seed, uint64_t parent, const int32_t *tokens,
                                            Py_ssize_t n) {
        quire_sip s = quire_sip_open(seed);
        Py_ssize_t i = 0;
        quire_sip_put(&s, parent);
        for (; i + 2 <= n; i += 2) quire_sip_put(&s, quire_pair(tokens + i));
        return quire_sip_close(&s, 8 + 4 * (uint64_t) n, i < n ? (uint32_t) tokens[i] : 0);
    }

    static inline uint64_t quire_words_hash(const uint64_t *seed, uint64_t plain, const uint64_t *words,
                                            Py_ssize_t n) {
        quire_sip s = quire_sip_open(seed);
        uint64_t num_bytes = 9;
        Py_ssize_t i;
        quire_sip_put(&s, plain);
        for (i = 0; i < n; i++, words += 3)
            if (words[0] | words[1] | words[2]) {
                quire_sip_put(&s, (uint64_t) i);
                quire_sip_put(&s, words[0]);
                quire_sip_put(&s, words[1]);
                quire_sip_put(&s, words[2]);
                num_bytes += 32;
            }
        return num_bytes == 9 ? plain : quire_sip_close(&s, num_bytes, 1);
    }
    """
    uint64_t plain_hash "quire_plain_hash" (const uint64_t *seed, uint64_t parent, const int32_t *tokens,
                                            Py_ssize_t n) noexcept nogil
    uint64_t words_hash "quire_words_hash" (const uint64_t *seed, uint64_t plain, const uint64_t *words,
                                            Py_ssize_t n) noexcept nogil


cdef int read_seed(uint64_t *seed, bytes given) except -1:
    """A seed's 16 bytes as two numbers, little-endian."""
    if len(given) != 16:
        raise ValueError(f"a seed of {len(given)} bytes, must be 16")
    seed[0], seed[1] = int.from_bytes(given[:8], "little"), int.from_bytes(given[8:], "little")
    return 0


cdef inline uint64_t event_hash(const uint64_t *seed, uint64_t parent, const int32_t *tokens, const uint64_t *extras,
                                Py_ssize_t n) noexcept nogil:
    """The hash routers see; never 0. The same wherever the seed is, and in the reference store, bit for bit."""
    cdef uint64_t h = plain_hash(seed, parent, tokens, n)
    if extras != NULL:
        h = words_hash(seed, h, extras, n)
    return h if h else 1
