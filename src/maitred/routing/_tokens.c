/* Tokens and shards in C: what `token` and `sharding` of tokens.py are where this could be built.

   tokens.py says what a token is and is the reference; the tests compare the two. Only Python's
   stable interface is used (3.11), so that one build serves every later Python too. Words are put
   together from their bytes, so alignment and byte order do not matter; compilers make one load of
   it where they can. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

static const uint64_t C1 = 0x87C37B91114253D5;
static const uint64_t C2 = 0x4CF5AD432745937F;

static inline uint64_t
word_at(const unsigned char *bytes)
{
    return (uint64_t)bytes[0] | (uint64_t)bytes[1] << 8 | (uint64_t)bytes[2] << 16 |
           (uint64_t)bytes[3] << 24 | (uint64_t)bytes[4] << 32 | (uint64_t)bytes[5] << 40 |
           (uint64_t)bytes[6] << 48 | (uint64_t)bytes[7] << 56;
}

/* Up to eight bytes of the last, incomplete block, each sign-extended: Cassandra's quirk. */
static inline uint64_t
extended(const unsigned char *bytes, Py_ssize_t size)
{
    uint64_t word = 0;
    for (Py_ssize_t at = 0; at < size; at++)
        word ^= (((uint64_t)bytes[at] ^ 0x80) - 0x80) << 8 * at;
    return word;
}

static inline uint64_t
rotated(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

static inline uint64_t
scrambled_1(uint64_t word)
{
    return rotated(word * C1, 31) * C2;
}

static inline uint64_t
scrambled_2(uint64_t word)
{
    return rotated(word * C2, 33) * C1;
}

static inline uint64_t
finished(uint64_t word)
{
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD;
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53;
    return word ^ word >> 33;
}

/* The token of a `bytes` object, as 64 bits without a sign. Anything else: -1, and a TypeError. */
static inline int
token_of(PyObject *data, uint64_t *found)
{
    char *start;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(data, &start, &size) < 0)
        return -1;

    const unsigned char *bytes = (const unsigned char *)start;
    Py_ssize_t left = size;
    uint64_t h1 = 0, h2 = 0;
    for (; left >= 16; left -= 16, bytes += 16) {
        h1 = (rotated(h1 ^ scrambled_1(word_at(bytes)), 27) + h2) * 5 + 0x52DCE729;
        h2 = (rotated(h2 ^ scrambled_2(word_at(bytes + 8)), 31) + h1) * 5 + 0x38495AB5;
    }
    if (left > 8)
        h2 ^= scrambled_2(extended(bytes + 8, left - 8));
    h1 ^= scrambled_1(extended(bytes, left > 8 ? 8 : left));
    h1 ^= (uint64_t)size;
    h2 ^= (uint64_t)size;
    h1 += h2;
    h2 += h1;
    *found = finished(h1) + finished(h2);
    return 0;
}

static PyObject *
token(PyObject *Py_UNUSED(module), PyObject *data)
{
    uint64_t found;
    if (token_of(data, &found) < 0)
        return NULL;
    return PyLong_FromLongLong((long long)found);
}

/* What `sharding` returns. Its self is a `bytes` object with the two numbers of the node. */
typedef struct {
    uint32_t shards;
    uint32_t ignore_msb;
} Node;

static PyObject *
shard_of_key(PyObject *self, PyObject *key)
{
    const char *numbers = PyBytes_AsString(self);
    uint64_t found;
    if (numbers == NULL || token_of(key, &found) < 0)
        return NULL;
    Node node;
    memcpy(&node, numbers, sizeof node);
    /* The upper 64 bits of the biased token, without its first bits, times the shards. */
    uint64_t biased = (found + ((uint64_t)1 << 63)) << node.ignore_msb;
    uint64_t lower = (biased & 0xFFFFFFFF) * node.shards >> 32;
    return PyLong_FromLong((long)(((biased >> 32) * node.shards + lower) >> 32));
}

static PyMethodDef shard_of_key_def = {
    "shard_of_key", shard_of_key, METH_O, "The shard, from 0 on, that owns the key."};

static PyObject *
sharding(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int shards, ignore_msb;
    if (!PyArg_ParseTuple(arguments, "ii:sharding", &shards, &ignore_msb))
        return NULL;
    /* tokens.py has checked them, in words and to closer limits; these keep the arithmetic defined. */
    if (shards < 1 || ignore_msb < 0 || ignore_msb > 63) {
        PyErr_SetString(PyExc_ValueError, "shards or ignore_msb out of range");
        return NULL;
    }
    Node node = {(uint32_t)shards, (uint32_t)ignore_msb};
    PyObject *self = PyBytes_FromStringAndSize((const char *)&node, sizeof node);
    if (self == NULL)
        return NULL;
    PyObject *function = PyCFunction_New(&shard_of_key_def, self);
    Py_DECREF(self);
    return function;
}

static PyMethodDef functions[] = {
    {"token", token, METH_O, "The Murmur3 token of the bytes: a signed number of 64 bits."},
    {"sharding", sharding, METH_VARARGS, "A function from keys to shards for one node."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "maitred.routing._tokens",
    .m_doc = "Tokens and shards in C; see tokens.py.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__tokens(void)
{
    return PyModuleDef_Init(&definition);
}
