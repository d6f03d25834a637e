"""Numbers that a compiled function only widens, such as the scores of a loss, are not stored, but code that reads them
later gets them anyway."""

import thalweg as torch
import thalweg.nn.functional as F

ROWS, CLASSES, FEATURES = 64, 515, 16


def loss_of(compiled, *, between=lambda: None, keep=None, backward=None, classes=CLASSES):
    """Returns the loss, the bytes that are held until the backward pass, and the gradients, of scores in bfloat16 and a loss in float32."""
    torch.manual_seed(3)
    weight = torch.randn(classes, FEATURES, requires_grad=True)
    x, target = torch.randn(ROWS, FEATURES, requires_grad=True), torch.randint(0, classes, (ROWS,))

    def forward(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = F.linear(x, weight)
        wide = scores.float()
        if keep is not None:
            keep.append(wide)
        return F.cross_entropy(wide, target, ignore_index=2)

    function = torch.compile(forward) if compiled else forward
    function(x).backward()  # the function is planned
    weight.grad, x.grad = None, None
    if keep is not None:
        keep.clear()
    before = torch.cuda.memory_allocated()
    loss = function(x)
    held = torch.cuda.memory_allocated() - before
    between()
    (backward or (lambda loss: loss.backward()))(loss)
    return loss.item(), held, weight.grad, x.grad


def agree(**options):
    eager, compiled = loss_of(False, **options), loss_of(True, **options)
    assert eager[0] == compiled[0]
    assert all(torch.equal(a, b) for a, b in zip(eager[2:], compiled[2:]))
    return eager, compiled


def test_widened_scores_are_not_stored():
    for classes in (10, CLASSES, 512, 50257):
        agree(classes=classes)
    for classes in (2050, 4096):
        eager, compiled = agree(classes=classes)
        saved = eager[1] - compiled[1]
        # A float32 number was kept for each score, and now it is a bfloat16 number.
        assert saved >= 2 * ROWS * classes - 4096, (classes, eager[1], compiled[1])


def test_other_reads_find_them():
    agree(between=torch.cuda.synchronize)
    kept = [], []
    eager, compiled = loss_of(False, keep=kept[0]), loss_of(True, keep=kept[1])
    assert eager[0] == compiled[0] and torch.equal(eager[2], compiled[2])
    assert torch.equal(kept[0][0], kept[1][0])


def test_two_backward_passes():
    def twice(loss):
        loss.backward(retain_graph=True)
        loss.backward()

    agree(backward=twice)


def test_a_captured_graph_computes_what_it_needs():
    weight, x = torch.randn(CLASSES, FEATURES), torch.randn(ROWS, FEATURES)
    target = torch.randint(0, CLASSES, (ROWS,))
    leaf = weight.clone().requires_grad_()

    def step():
        scores = F.linear(x.bfloat16(), leaf.bfloat16())
        loss = torch.compile(lambda s: F.cross_entropy(s.float(), target))(scores)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return loss, gradient

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, gradient = step()
    for _ in range(2):
        x.normal_()
        graph.replay()
        expected = step()
        assert torch.equal(loss, expected[0]) and torch.equal(gradient, expected[1])
