# Owns: the public event hash of a block: SipHash-2-4 under the cache's seed.
# Does not know: who keeps hashes, where a seed comes from.
#
#     plain    S(parent, tokens)                                       parent 8 bytes, a token 4, all little-endian
#     words    S(plain, place and words of each token that has some, 1)    8 bytes each; the odd byte sets both apart

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
    """The hash routers see; never 0. The same wherever the seed is, and in the twin, bit for bit."""
    cdef uint64_t h = plain_hash(seed, parent, tokens, n)
    if extras != NULL:
        h = words_hash(seed, h, extras, n)
    return h if h else 1
