/* Checks of the SDK, in a harness: what does not hold ends it with the line. */
#include "sdk/espalier.h"

#include <stdlib.h>
#include <string.h>

ESPALIER_NO_SETTINGS();

static void same(espalier_str text, const char *expected) {
    if (!espalier_equal(text, espalier_text(expected)))
        espalier_panic("expected `%s`, got `%s`", expected, text.ptr);
}

/* What is written of what was read, or the error. */
static espalier_str read(const char *text) {
    espalier_str error;
    const espalier_json *value = espalier_json_parse(espalier_text(text), &error);
    return value == NULL ? error : espalier_json_write(value);
}

static void json(void) {
    same(read(" { \"a\" : [1, -2.50, 1e3, true,false , null, \"x\\n\\u00e4\\ud83d\\ude00\\\"\\/\"] , \"b\":{} }"),
        "{\"a\":[1,-2.5,1000.0,true,false,null,\"x\\nä😀\\\"/\"],\"b\":{}}");
    same(read("{\"a\":1,\"a\":2}"), "{\"a\":2}");
    same(read("9223372036854775807"), "9223372036854775807");
    same(read("9223372036854775808"), "9.223372036854776e+18");
    same(read("0.1"), "0.1");
    same(read("\"\\u0000\""), "\"\\u0000\"");
    same(read(""), "invalid JSON at byte 0: expected a value");
    same(read("[1,]"), "invalid JSON at byte 3: expected a value");
    same(read("[1 2]"), "invalid JSON at byte 3: expected `,` or `]`");
    same(read("{,}"), "invalid JSON at byte 1: expected a string");
    same(read("{\"a\" 1}"), "invalid JSON at byte 5: expected `:`");
    same(read("{} x"), "invalid JSON at byte 3: expected nothing more");
    same(read("\"abc"), "invalid JSON at byte 4: expected `\"`");
    same(read("\"a\\"), "invalid JSON at byte 3: expected `\"`");
    same(read("\"\\u12\""), "invalid JSON at byte 5: expected four hexadecimal digits of a character");
    same(read("\"\\ud800x\""), "invalid JSON at byte 9: expected four hexadecimal digits of a character");
    same(read("\"a\tb\""), "invalid JSON at byte 3: expected an escape for a control character");
    same(read("01"), "invalid JSON at byte 1: expected nothing more");
    same(read("1."), "invalid JSON at byte 2: expected a digit");
    same(read("1e999"), "invalid JSON at byte 0: expected a number within the range of a double");
    char deep[200];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    same(read(deep), "invalid JSON at byte 128: expected less depth");
}

static void texts(void) {
    int64_t number;
    same(espalier_trim(espalier_text(" \t a b\r\n")), "a b");
    same(espalier_trim(espalier_text("  ")), "");
    same(espalier_lower(espalier_text("ÄÖÜ ΑΒΓ ЖЗИ Ⱥ x!")), "äöü αβγ жзи ⱥ x!");
    assert(espalier_parse_integer(espalier_text("-9223372036854775808"), &number) && number == INT64_MIN);
    assert(!espalier_parse_integer(espalier_text("9223372036854775808"), &number));
    assert(!espalier_parse_integer(espalier_text("1.0"), &number));
    assert(!espalier_parse_integer(espalier_text(""), &number));
    espalier_str rest = espalier_text("one\r\n\ntwo"), line;
    assert(espalier_next_line(&rest, &line) && strcmp(line.ptr, "one") == 0);
    assert(espalier_next_line(&rest, &line) && line.len == 0);
    assert(espalier_next_line(&rest, &line) && strcmp(line.ptr, "two") == 0);
    assert(!espalier_next_line(&rest, &line));
    espalier_strs many = {0};
    for (int index = 0; index < 5000; index++)
        espalier_add_text(&many, espalier_format("%d", index));
    for (int index = 0; index < 5000; index++)
        assert(atoi(many.items[index].ptr) == index);
    same(espalier_format("%0300d", 7), espalier_format("%0300d", 7).ptr);
}

struct sum {
    int64_t a;
    double b;
    int c;
    espalier_strs names;
    espalier_json *any;
};

static const espalier_field sum_fields[] = {
    ESPALIER_FIELD(struct sum, a, "The first.", .minimum = "1"),
    ESPALIER_FIELD(struct sum, b, "The second.", .default_value = "0.5", .maximum = "10"),
    ESPALIER_FIELD(struct sum, c, "The third.", .optional = true),
    ESPALIER_FIELD(struct sum, names, "Names.", .default_value = "[\"x\"]"),
    ESPALIER_FIELD(struct sum, any, "Anything.", .optional = true),
    ESPALIER_END,
};

/* What is wrong with an object; "" for nothing. */
static espalier_str wrong(const char *object) {
    struct sum sum;
    espalier_json *given = espalier_json_parse(espalier_text(object), NULL);
    espalier_status status = espalier_fields_read(given, "sum", sum_fields, true, &sum);
    return status == ESPALIER_OK ? espalier_text("") : espalier_failure_text(status);
}

static void fields(void) {
    same(wrong("{\"a\":1,\"b\":2,\"c\":3.0,\"names\":[],\"any\":null}"), "");
    same(wrong("[]"), "sum: expected an object, got []");
    same(wrong("{}"), "sum: `a` is missing: expected an integer of at least 1");
    same(wrong("{\"a\":0}"), "sum: `a`: expected an integer of at least 1, got 0");
    same(wrong("{\"a\":1,\"b\":11}"), "sum: `b`: expected a number of at most 10, got 11");
    same(wrong("{\"a\":1,\"c\":3000000000}"), "sum: `c`: expected an integer, got 3000000000");
    same(wrong("{\"a\":1,\"names\":[1]}"), "sum: `names`: expected a list of strings, got [1]");
    same(wrong("{\"a\":1,\"d\":1}"), "sum: unknown key `d`");
    struct sum sum = {0};
    espalier_json *given = espalier_json_parse(espalier_text("{\"a\":7}"), NULL);
    assert(espalier_fields_read(given, "sum", sum_fields, true, &sum) == ESPALIER_OK);
    assert(sum.a == 7 && sum.b == 0.5 && sum.names.len == 1 && sum.any == NULL);
}

static espalier_status add(const void *arguments, void *context, espalier_str *result) {
    const struct sum *sum = arguments;
    int *count = context;
    if (sum->a == 13)
        return espalier_invalid("13 is not added");
    ++*count;
    *result = espalier_format("%g", (double)sum->a + sum->b);
    return ESPALIER_OK;
}

static const espalier_tool tools[] = {{"add", "Adds two numbers.", sum_fields, sizeof(struct sum), add}};

static espalier_status run(const espalier_task *task, espalier_report *report) {
    json();
    texts();
    fields();
    int count = 0;
    espalier_answer answer;
    espalier_conversation *chat = espalier_conversation_with("policy");
    espalier_conversation_tools(chat, tools, sizeof tools / sizeof *tools);
    espalier_conversation_user(chat, "%s", task->instruction.ptr);
    ESPALIER_TRY(espalier_conversation_complete(chat, &answer));
    while (answer.tool_calls.len > 0) {
        ESPALIER_TRY(espalier_conversation_run_tools(chat, &answer, &count));
        ESPALIER_TRY(espalier_conversation_complete(chat, &answer));
    }
    espalier_json *data = espalier_json_object();
    espalier_json_set(data, "count", espalier_json_integer(count));
    espalier_json_set(data, "turns", espalier_json_integer(answer.usage.turns));
    return espalier_submit(report, answer.text, espalier_json_write(data));
}

ESPALIER_HARNESS(run);
