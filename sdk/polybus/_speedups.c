/* The usual case in C: frames with a length in front, requests, answers and publications of UBRE in JSON, bodies in JSON.

   Each function has a twin in Python that knows all the rules and all the error texts. What is done here is what the twin would
   do, and nothing is refused: whatever is unusual, wrong or merely not proved goes to the twin, as it came. No text is looked at
   but through its UTF-8. References are owned wherever Python may run. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <string.h>
#include <structmember.h>

enum slot { KIND, SUBJECT, ID, RAW, TTL, DECODED, CHECKED, SLOTS };
enum verb { REQUEST, SUCCESS, PUBLISH, VERBS };

/* A reader, a writer or an encoder: what its functions are, and in which order, stands below at the methods. */
typedef struct {
    PyObject_HEAD
    PyObject *functions, *blanks;  /* tuples: functions of Python, and of each verb a Message with nothing set, or nothing */
    Py_ssize_t offsets[SLOTS];     /* of a Message */
    Py_ssize_t longest, depth, subject, id;
} Twin;

#define FUNCTION(twin, which) PyTuple_GET_ITEM((twin)->functions, which)
#define BLANK(twin, verb) PyTuple_GET_ITEM((twin)->blanks, verb)
#define AT(message, offset) (*(PyObject **)((char *)(message) + (offset)))
#define GET(twin, message, slot) AT(message, (twin)->offsets[slot])

/* No tp_clear: whatever refers back to one of these can be cleared itself, and a method never meets a function that is gone. */
static int twin_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Twin *)self)->functions);
    Py_VISIT(((Twin *)self)->blanks);
    return 0;
}

static void twin_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((Twin *)self)->functions), Py_XDECREF(((Twin *)self)->blanks);
    Py_TYPE(self)->tp_free(self);
}

/* Find out where the class of the blank messages has its slots. False with an error where it is made otherwise. */
static int know_messages(Twin *t) {
    static const char *const names[SLOTS] = {"kind", "subject", "id", "raw", "ttl", "decoded", "checked"};
    PyTypeObject *type = Py_TYPE(BLANK(t, 0));
    int known = Py_IS_TYPE(BLANK(t, 1), type) && Py_IS_TYPE(BLANK(t, 2), type) && !type->tp_itemsize && !type->tp_dictoffset;
    for (int i = 0; known && i < SLOTS; i++) {
        PyObject *found = PyObject_GetAttrString((PyObject *)type, names[i]);
        if (found == NULL) return 0;
        PyMemberDef *member = Py_IS_TYPE(found, &PyMemberDescr_Type) ? ((PyMemberDescrObject *)found)->d_member : NULL;
        if ((known = member != NULL && member->type == T_OBJECT_EX)) t->offsets[i] = member->offset;
        Py_DECREF(found);
    }
    if (!known) PyErr_SetString(PyExc_TypeError, "messages of one class, with slots alone, are wanted");
    return known;
}

/* Twin(functions, messages, longest, depth, subject, id); without messages all goes to the functions. */
static PyObject *twin_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *functions, *blanks;
    Py_ssize_t longest, depth, subject, id;
    if (!PyArg_ParseTuple(args, "O!O!nnnn", &PyTuple_Type, &functions, &PyTuple_Type, &blanks, &longest, &depth, &subject, &id))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(blanks);
    if (PyTuple_GET_SIZE(functions) != 4 || (count != 0 && count != VERBS))
        return PyErr_Format(PyExc_TypeError, "four functions are wanted, and three messages or none");
    Twin *t = (Twin *)type->tp_alloc(type, 0);
    if (t == NULL) return NULL;
    t->functions = Py_NewRef(functions), t->blanks = Py_NewRef(blanks);
    t->longest = longest, t->depth = depth, t->subject = subject, t->id = id;
    if (count != 0 && !know_messages(t)) Py_CLEAR(t);
    return (PyObject *)t;
}

/* -- frames with a length in front: LengthFramer.feed ------------------------------------------------------------------- */
/* cut(data, position, limit, frames): append the whole frames; where the first begins that is not whole, empty or too long. */
static PyObject *cut(PyObject *module, PyObject *args) {
    PyObject *bytes, *frames;
    Py_ssize_t at, limit;
    if (!PyArg_ParseTuple(args, "OnnO!", &bytes, &at, &limit, &PyList_Type, &frames)) return NULL;
    if (!PyBytes_CheckExact(bytes) || at < 0 || limit < 0) return PyLong_FromSsize_t(at);
    Py_ssize_t size = PyBytes_GET_SIZE(bytes);
    while (at <= size - 4) {
        const unsigned char *p = (const unsigned char *)PyBytes_AS_STRING(bytes) + at;
        uint32_t length = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
        if (length == 0 || length > (size_t)limit || length > (size_t)(size - at - 4)) break;
        PyObject *frame = PyBytes_FromStringAndSize((const char *)p + 4, (Py_ssize_t)length);
        int failed = frame == NULL || PyList_Append(frames, frame);
        Py_XDECREF(frame);
        if (failed) return NULL;
        at += 4 + (Py_ssize_t)length;
    }
    return PyLong_FromSsize_t(at);
}

/* -- bodies: body.py ---------------------------------------------------------------------------------------------------- */
/* True where a text is nested no deeper than the limit; false where it is, or its brackets and quotes do not match. */
static int shallow(const char *p, const char *end, Py_ssize_t limit) {
    Py_ssize_t depth = 0;
    for (; p < end; p++) {
        if (*p == '[' || *p == '{') depth++;
        else if (*p == ']' || *p == '}') depth--;
        else if (*p == '"') {
            const char *inside = p + 1, *before;
            do {  /* the next quote behind an even number of backslashes */
                p = memchr(p + 1, '"', (size_t)(end - p - 1));
                if (p == NULL) return 0;
                for (before = p; before > inside && before[-1] == '\\'; before--);
            } while ((p - before) % 2);
        } else if (*p == '\\') return 0;
        if (depth > limit || depth < 0) return 0;
    }
    return depth == 0;
}

static PyObject *is_shallow(PyObject *module, PyObject *args) {
    const char *data;
    Py_ssize_t size, limit;
    return PyArg_ParseTuple(args, "y#n", &data, &size, &limit) ? PyBool_FromLong(shallow(data, data + size, limit)) : NULL;
}

/* True where a value is of plain types alone, nested no deeper, and has no number that JSON has not. No Python runs meanwhile. */
static int flat(PyObject *value, int levels) {
    if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value) || value == Py_None) return 1;
    if (PyFloat_CheckExact(value)) return isfinite(PyFloat_AS_DOUBLE(value)) != 0;
    int is_dict = PyDict_CheckExact(value), plain = 1;
    if ((!is_dict && !PyList_CheckExact(value)) || levels == 0) return PyBytes_CheckExact(value);
    PyObject *key, *item;
    for (Py_ssize_t at = 0; plain && is_dict && PyDict_Next(value, &at, &key, &item);)
        plain = (PyUnicode_CheckExact(key) || PyLong_CheckExact(key)) && flat(item, levels - 1);
    for (Py_ssize_t at = 0; plain && !is_dict && at < PyList_GET_SIZE(value); at++)
        plain = flat(PyList_GET_ITEM(value, at), levels - 1);
    return plain;
}

static PyObject *is_flat(PyObject *module, PyObject *args) {
    PyObject *value; int levels;
    return PyArg_ParseTuple(args, "Oi", &value, &levels) ? PyBool_FromLong(flat(value, levels)) : NULL;
}

enum { ENCODE, CHECK, REFUSE };  /* functions of an encoder; a text up to `longest` cannot be too deep */

static PyObject *twin_encode(PyObject *self, PyObject *value) {
    Twin *t = (Twin *)self;
    PyObject *data = PyObject_CallOneArg(FUNCTION(t, ENCODE), value), *done, *type, *error, *trace;
    if (data == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    if (data == NULL) {
        PyErr_Fetch(&type, &error, &trace), PyErr_NormalizeException(&type, &error, &trace);
        if (trace != NULL) PyException_SetTraceback(error, trace);
        done = PyObject_CallFunctionObjArgs(FUNCTION(t, REFUSE), value, error, NULL);
        return Py_XDECREF(type), Py_XDECREF(error), Py_XDECREF(trace), done;
    }
    if (PyBytes_CheckExact(data) && PyBytes_GET_SIZE(data) <= t->longest) {
        const char *p = PyBytes_AS_STRING(data), *end = p + PyBytes_GET_SIZE(data);
        if (!memchr(p, 'T', (size_t)(end - p)) && !memchr(p, '*', (size_t)(end - p))) {
            while ((p = memchr(p, 'n', (size_t)(end - p))) != NULL && (end - p < 4 || memcmp(p, "null", 4) != 0)) p++;
            if (p == NULL) return data;
        }
    }
    done = PyObject_CallFunctionObjArgs(FUNCTION(t, CHECK), value, data, NULL);
    return Py_DECREF(data), done;
}

/* -- reading: JsonReader.read, and None for what is unusual ------------------------------------------------------------- */

enum { DECODE };  /* the function of a reader */
/* The length of what is plain ASCII at the beginning, without a quote in it. */
static Py_ssize_t plain(const char *text, const char *end) {
    const char *p = text;
    while (p < end && (unsigned char)*p >= 0x20 && (unsigned char)*p <= 0x7e && *p != '"' && *p != '\\') p++;
    return p - text;
}

/* Where ",ttl" begins at the end of a request, if it has one of up to 15 digits; else the end. */
static const char *cut_ttl(const char *at, const char *end, double *ttl) {
    const char *p = end;
    long long number = 0;
    while (p > at && p[-1] >= '0' && p[-1] <= '9') p--;
    if (p == end || end - p > 15 || (*p == '0' && end - p > 1) || p - at < 7 || memcmp(p - 7, ",\"ttl\":", 7) != 0) return end;
    for (const char *digit = p; digit < end; digit++) number = number * 10 + (*digit - '0');
    *ttl = (double)number / 1000;
    return p - 7;
}

/* A message like the blank one. */
static PyObject *another(PyObject *blank) {
    PyTypeObject *type = Py_TYPE(blank);
    PyObject *made = type->tp_alloc(type, 0);
    for (Py_ssize_t at = sizeof(PyObject); made != NULL && at < type->tp_basicsize; at += sizeof(PyObject *))
        if (at != type->tp_weaklistoffset) AT(made, at) = Py_XNewRef(AT(blank, at));
    return made;
}

/* The message of a usual frame. NULL without an error: it is none, as far as can be seen here. */
static PyObject *usual(Twin *t, PyObject *frame) {
    static const char verbs[VERBS][13] = {"{\"request\":\"", "{\"success\":\"", "{\"publish\":\""};
    const char *start = PyBytes_AS_STRING(frame), *end = start + PyBytes_GET_SIZE(frame), *first = start + 12, *at, *id = NULL;
    PyObject *raw = NULL, *value = NULL, *made = NULL, *part;
    double ttl = -1;
    int verb = 0;
    if (end - start < 14 || end - start > t->longest || *--end != '}' || PyTuple_GET_SIZE(t->blanks) == 0) return NULL;
    while (verb < VERBS && memcmp(start, verbs[verb], 12) != 0) verb++;
    if (verb == VERBS) return NULL;
    Py_ssize_t size = plain(first, end), id_size = 0;
    if (size < (verb != REQUEST) || size > (verb == SUCCESS ? t->id : t->subject)) return NULL;  /* a request's may be "" */
    at = first + size;
    if (verb == REQUEST) {
        if (end - at < 8 || memcmp(at, "\",\"id\":\"", 8) != 0) return NULL;
        id = at + 8;
        id_size = plain(id, end);
        if (id_size < 1 || id_size > t->id) return NULL;
        at = id + id_size;
    }
    if (at == end || *at++ != '"') return NULL;
    if (verb == REQUEST) end = cut_ttl(at, end, &ttl);
    if (at < end) {
        if (end - at < 9 || memcmp(at, ",\"body\":", 8) != 0) return NULL;
        at += 8;
        if ((unsigned char)*at <= ' ' || (unsigned char)end[-1] <= ' ') return NULL;  /* there is no space around a body */
        if (PyBytes_GET_SIZE(frame) / 2 > t->depth && !shallow(at, end, t->depth)) return NULL;
        raw = PyBytes_FromStringAndSize(at, end - at);
        if (raw == NULL) return NULL;
        /* It proves, too, that this is one value: other members stand nowhere in it. */
        value = PyObject_CallOneArg(FUNCTION(t, DECODE), raw);
        if (!value && (PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_RecursionError))) PyErr_Clear();
        if (!value) goto done;
    }
    if ((made = another(BLANK(t, verb))) == NULL) goto done;
    if ((part = PyUnicode_DecodeASCII(first, size, NULL)) != NULL) Py_XSETREF(GET(t, made, verb == SUCCESS ? ID : SUBJECT), part);
    if (part && id && (part = PyUnicode_DecodeASCII(id, id_size, NULL)) != NULL) Py_XSETREF(GET(t, made, ID), part);
    if (part && ttl >= 0 && (part = PyFloat_FromDouble(ttl)) != NULL) Py_XSETREF(GET(t, made, TTL), part);
    if (part == NULL) Py_CLEAR(made);
    if (made != NULL && raw != NULL) {
        Py_XSETREF(GET(t, made, RAW), Py_NewRef(raw));
        Py_XSETREF(GET(t, made, CHECKED), Py_NewRef(raw));
        Py_XSETREF(GET(t, made, DECODED), Py_NewRef(value));
    }
done:
    Py_XDECREF(raw), Py_XDECREF(value);
    return made;
}

static PyObject *twin_usual(PyObject *self, PyObject *const *args, Py_ssize_t count) {  /* frame, dict of ids to answer, or None */
    Twin *t = (Twin *)self;
    PyObject *made = count == 2 && PyBytes_CheckExact(args[0]) ? usual(t, args[0]) : NULL;
    int known = made == NULL || !PyDict_Check(args[1]) || GET(t, made, KIND) != GET(t, BLANK(t, SUCCESS), KIND)
        ? made != NULL : PyDict_Contains(args[1], GET(t, made, ID));
    if (known <= 0) Py_CLEAR(made);
    return made != NULL || PyErr_Occurred() ? made : Py_NewRef(Py_None);
}

/* -- writing: JsonWriter ------------------------------------------------------------------------------------------------ */

enum { PUBLICATION, ASK, TELL, QUOTE };  /* functions of a writer; `longest` is that of an answer */
typedef struct { const char *text; Py_ssize_t size; } Piece;
#define PIECE(text) {text, sizeof(text) - 1}
#define BYTES(object) {PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object)}

static PyObject *joined(const Piece *pieces, int count) {
    Py_ssize_t size = 0;
    for (int i = 0; i < count; i++) size += pieces[i].size;
    PyObject *made = PyBytes_FromStringAndSize(NULL, size);
    char *p = made == NULL ? NULL : PyBytes_AS_STRING(made);
    for (int i = 0; p != NULL && i < count; p += pieces[i++].size) memcpy(p, pieces[i].text, (size_t)pieces[i].size);
    return made;
}

/* True where an id may stand between quotes as it is; the piece is its own memory. No error is set where not. */
static int plain_id(PyObject *id, Piece *piece) {
    piece->text = PyUnicode_CheckExact(id) ? PyUnicode_AsUTF8AndSize(id, &piece->size) : NULL;
    if (piece->text == NULL) PyErr_Clear();  /* a lone surrogate, say: the twin says so */
    return piece->text != NULL && plain(piece->text, piece->text + piece->size) == piece->size;
}

/* The quoted subject as bytes, by the twin's function, which checks it. NULL without an error: the twin says what is wrong. */
static PyObject *quoted(Twin *t, PyObject *subject) {
    PyObject *made = PyObject_CallOneArg(FUNCTION(t, QUOTE), subject);
    if (made == NULL && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
    return made;
}

static PyObject *twin_ask(PyObject *self, PyObject *const *args, Py_ssize_t count) {  /* subject, id, raw, ttl */
    Twin *t = (Twin *)self;
    Piece id;
    if (count == 4 && plain_id(args[1], &id) && PyBytes_CheckExact(args[2]) && PyFloat_CheckExact(args[3])) {
        volatile double left = PyFloat_AS_DOUBLE(args[3]) * 1000;  /* rounded before the half is added, as in Python */
        PyObject *subject = left >= 0 && left < 1e15 ? quoted(t, args[0]) : NULL, *made;
        if (subject != NULL) {
            char digits[24];
            int at = sizeof(digits);
            for (long long number = (long long)(left + 0.5); number != 0 || at == sizeof(digits); number /= 10)
                digits[--at] = (char)('0' + number % 10);
            const Piece pieces[] = {PIECE("{\"request\":"), BYTES(subject), PIECE(",\"id\":\""), id, PIECE("\",\"body\":"),
                                    BYTES(args[2]), PIECE(",\"ttl\":"), {digits + at, (Py_ssize_t)sizeof(digits) - at}, PIECE("}")};
            made = joined(pieces, 9);
            Py_DECREF(subject);
            return made;
        }
        if (PyErr_Occurred()) return NULL;
    }
    return PyObject_Vectorcall(FUNCTION(t, ASK), args, count, NULL);
}

static PyObject *twin_tell(PyObject *self, PyObject *const *args, Py_ssize_t count) {  /* id, raw */
    Twin *t = (Twin *)self;
    Piece id;
    if (count == 2 && PyBytes_CheckExact(args[1]) && plain_id(args[0], &id)) {
        const Piece pieces[] = {PIECE("{\"success\":\""), id, PIECE("\",\"body\":"), BYTES(args[1]), PIECE("}")};
        if (id.size + PyBytes_GET_SIZE(args[1]) <= t->longest - 22) return joined(pieces, 5);
    }
    return PyObject_Vectorcall(FUNCTION(t, TELL), args, count, NULL);
}

static PyObject *twin_publication(PyObject *self, PyObject *const *args, Py_ssize_t count) {  /* subject, raw */
    Twin *t = (Twin *)self;
    if (count == 2 && PyUnicode_CheckExact(args[0]) && PyUnicode_GET_LENGTH(args[0]) > 0 && PyBytes_CheckExact(args[1])) {
        PyObject *subject = quoted(t, args[0]), *made;
        if (subject != NULL) {
            const Piece pieces[] = {PIECE("{\"publish\":"), BYTES(subject), PIECE(",\"body\":"), BYTES(args[1]), PIECE("}")};
            made = joined(pieces, 5);
            Py_DECREF(subject);
            return made;
        }
        if (PyErr_Occurred()) return NULL;
    }
    return PyObject_Vectorcall(FUNCTION(t, PUBLICATION), args, count, NULL);
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL
static PyMethodDef functions[] = {{"cut", cut, METH_VARARGS, NULL}, {"is_shallow", is_shallow, METH_VARARGS, NULL},
                                  {"is_flat", is_flat, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyMethodDef methods[] = {{"encode", twin_encode, METH_O, NULL}, {"usual", FAST(twin_usual), NULL},
                                {"ask", FAST(twin_ask), NULL}, {"tell", FAST(twin_tell), NULL},
                                {"publication", FAST(twin_publication), NULL}, {NULL, NULL, 0, NULL}};
static PyTypeObject TwinType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "polybus._speedups.Twin", .tp_basicsize = sizeof(Twin), .tp_new = twin_new,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_traverse = twin_traverse, .tp_dealloc = twin_dealloc,
    .tp_methods = methods};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "polybus._speedups", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__speedups(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (PyModule_AddType(module, &TwinType) < 0 || PyModule_AddIntConstant(module, "VERSION", 3) < 0))
        Py_CLEAR(module);
    return module;
}
