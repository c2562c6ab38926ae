"""What SmolLM2 is asked for its goldens: conversations, raw texts and one long mixed text."""

# Each entry: (name, messages). Rendered with the model's own chat template, generation prompt on.
CONVERSATIONS = [
    ("capital", [{"role": "user", "content": "What is the capital of France, and why is it famous?"}]),
    ("system prompt", [
        {"role": "system", "content": "You are a patient gardener who answers in short sentences."},
        {"role": "user", "content": "How do I grow tomatoes on a balcony?"}]),
    ("list", [{"role": "user", "content": "Give me a numbered list of seven things to pack for a "
                                          "winter hike in the mountains."}]),
    ("python function", [{"role": "user", "content": "Write a Python function that returns the n-th "
                                                     "Fibonacci number, with a docstring."}]),
    ("arithmetic", [{"role": "user", "content": "A train leaves at 14:35 and arrives at 17:10. It "
                                                "covers 186 km. How long does it travel, and how "
                                                "fast is it on average? Show the steps."}]),
    ("many turns", [
        {"role": "user", "content": "Who wrote Moby-Dick?"},
        {"role": "assistant", "content": "Herman Melville wrote Moby-Dick, published in 1851."},
        {"role": "user", "content": "What is the whale's colour?"},
        {"role": "assistant", "content": "The whale is white."},
        {"role": "user", "content": "Explain in a few sentences what the whale stands for."}]),
    ("french", [{"role": "user", "content": "Écris trois phrases sur la mer, en français."}]),
    ("german", [{"role": "user", "content": "Erkläre kurz, warum der Himmel blau ist. Größere "
                                            "Wörter bitte vermeiden."}]),
    ("summary of a paragraph", [{"role": "user", "content": """Summarise the following report for a busy reader.

The town library reopened on Monday after eleven months of repairs. The old building, put up in 1911 with money given by a shipping family, had suffered from a leaking roof and from wiring that no electrician wanted to touch. Workers replaced every slate, cleaned the stone, and found, behind a false wall in the reading room, a mural of the harbour that nobody living had seen. The council first wished to cover it again, because the paint was in poor condition and money was short; a petition signed by four thousand people changed its mind. A restorer from the university spent nine weeks on a scaffold with cotton swabs and distilled water. The mural now shows forty-one boats, two dogs and a man selling oranges. Visitors on the first day waited up to two hours. The librarian said that she had lent more books before noon than in a usual week, and that the most wanted title was a history of the harbour which had not left its shelf for sixteen years. Opening hours are longer than before: from nine to eight on weekdays and from ten to four on Saturdays. The repairs cost 2.3 million, a tenth more than planned, and the difference was covered by a concert, a bake sale and one anonymous gift."""}]),
    ("review of a program", [{"role": "user", "content": """What does this C program print, and what could go wrong in it?

```c
#include <stdio.h>
#include <stdlib.h>

typedef struct node { int value; struct node *next; } node;

static node *push(node *head, int value) {
  node *n = malloc(sizeof(*n));
  n->value = value;
  n->next = head;
  return n;
}

int main(void) {
  node *head = NULL;
  for (int i = 0; i < 5; i++) head = push(head, i * i);
  for (node *n = head; n != NULL; n = n->next) printf("%d ", n->value);
  printf("\\n");
  return 0;
}
```"""}]),
    ("story", [
        {"role": "system", "content": "You tell bedtime stories."},
        {"role": "user", "content": "Tell me about a lighthouse keeper and a lost seal."}]),
    ("table", [{"role": "user", "content": "Compare cats and dogs in a Markdown table with the "
                                           "columns: animal, food, sleep, noise."}]),
]

# Each entry: (name, text). No template, no special tokens.
RAW_TEXTS = [
    ("plain beginning", "The old clock in the hall struck"),
    ("code beginning", "def quicksort(items):\n    if len(items) <= 1:\n        return items\n"),
    ("countries", "Country: Italy. Capital: Rome.\nCountry: Japan. Capital: Tokyo.\nCountry: Egypt. "
                  "Capital: Cairo.\nCountry: Canada. Capital:"),
    ("spanish", "Había una vez un pequeño pueblo entre las montañas donde"),
    ("chinese and emoji", "今天天气很好，我们去公园散步。🙂 Translation:"),
    ("json", '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "known_for": '),
    ("numbers", "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89,"),
    ("long essay", """Water moves. It rises from the sea as vapour, travels as cloud, falls as rain or snow, and runs down again in brooks and rivers. On the way it does work: it dissolves salts, grinds stones to sand, carries soil from the hills to the plains, and cools or warms the air above it. People noticed early that a river is a servant who never sleeps. In Mesopotamia canals led it to the fields; in Egypt the year itself was counted from its flood. Mills came later. A wheel set in a stream could grind the grain of a village while the miller slept, and before long the same wheel was made to saw timber, to hammer iron and to full cloth. Each new use brought quarrels, since a dam that helps one man robs his neighbour of the current, and so the mill also helped to bring about law: old court records are full of weirs that were a hand too high. When steam arrived, it was at first used to pump water back up to the wheel, which shows how hard it is to give up a good idea. Today turbines spin in the same valleys. The lesson for engineers is simple, and it has three parts. First,"""),
]

# At least 501 tokens: prose, code, a list, a table, other languages, numbers.
LONG_TEXT = """A chain of small workshops

Imagine a street with five workshops. The first cuts planks, the second planes them, the third drills the holes, the fourth joins the parts and the fifth paints the finished chair. Nobody carries the whole tool chest around; each master knows one job and hands the piece to the next door. When only one chair is wanted, four masters stand idle at any time. When ten chairs are wanted, all of them are busy, and the street delivers a chair as often as its slowest master finishes one. That is the whole secret of a pipeline, and also its main weakness: the slowest step decides.

The owner of the street therefore keeps a book:

| workshop | minutes | waiting |
|----------|---------|---------|
| cutting  | 12      | 3       |
| planing  | 9       | 6       |
| drilling | 15      | 0       |
| joining  | 14      | 1       |
| painting | 11      | 4       |

If drilling takes 15 minutes, then no more than 4 chairs leave the street in an hour. Moving one drill to the joiner would bring both to about 14.5 minutes. The following program does the same sum:

```python
def chairs_per_hour(minutes):
    \"\"\"Returns how many chairs a chain of workshops finishes in one hour.\"\"\"
    slowest = max(minutes)
    if slowest <= 0:
        raise ValueError("every step must take some time")
    return 60.0 / slowest


if __name__ == "__main__":
    steps = {"cutting": 12, "planing": 9, "drilling": 15, "joining": 14, "painting": 11}
    for name, value in sorted(steps.items(), key=lambda item: -item[1]):
        print(f"{name:10s} {value:3d} min")
    print(chairs_per_hour(steps.values()))
```

What happens when a master falls ill? Three rules are written above the door:

1. Say at once that the work has stopped, and who stopped it.
2. Keep the unfinished chairs; do not throw away good planks.
3. When the substitute arrives, begin again with the oldest order.

A traveller from Lyon once remarked: « Chez nous, on ferait tout dans une seule maison. » The owner smiled and answered in German that his house was simply too small: „Das Haus ist klein, aber die Straße ist lang.“ Both were right. A single large house needs no carrying, but few people can afford one. On 3 March 1987 the street made its 100,000th chair (serial number A-100000/7); it stands in the town museum, next to a letter from a customer who complained that chair number 99,999 wobbled.

In the end the customers did not care how many workshops there were. They sat down, leaned back, and asked for a second chair, please, exactly like the first.
"""
