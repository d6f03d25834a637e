# A step of GPT-2 (124M) with a static cache, batch 1, bf16, captured as one graph: microseconds per token.
import torch, time, json
import torch.nn.functional as F
torch.manual_seed(0)
L,H,D,C,V=12,12,768,1024,50257
dt=torch.bfloat16; dev="cuda"
r=lambda *s: torch.randn(*s,device=dev,dtype=dt)*0.02
wte,wpe=r(V,D),r(C,D)
ls=[dict(g1=torch.ones(D,device=dev,dtype=dt),b1=r(D),qkv=r(3*D,D),qb=r(3*D),o=r(D,D),ob=r(D),g2=torch.ones(D,device=dev,dtype=dt),b2=r(D),f=r(4*D,D),fb=r(4*D),c=r(D,4*D),cb=r(D),cache=torch.zeros(2,H,C,D//H,device=dev,dtype=dt)) for _ in range(L)]
gf,bf=torch.ones(D,device=dev,dtype=dt),r(D)
places=torch.arange(C,device=dev); token=torch.tensor([42],device=dev); pos=torch.tensor([0],device=dev)
@torch.no_grad()
def step():
    mask=(places<=pos)[None,None]
    x=wte[token]+wpe[pos]
    for l in ls:
        h=F.layer_norm(x,(D,),l["g1"],l["b1"]); p=F.linear(h,l["qkv"],l["qb"]).view(3,H,1,D//H)
        l["cache"].index_copy_(2,pos,p[1:])
        a=F.scaled_dot_product_attention(p[0][None],l["cache"][0][None],l["cache"][1][None],attn_mask=mask)
        x=x+F.linear(a.reshape(1,D),l["o"],l["ob"])
        h=F.layer_norm(x,(D,),l["g2"],l["b2"])
        x=x+F.linear(F.gelu(F.linear(h,l["f"],l["fb"]),approximate="tanh"),l["c"],l["cb"])
    s=F.linear(F.layer_norm(x,(D,),gf,bf),wte)
    token.copy_(s.argmax(-1)); pos.add_(1)
def timed(f,n=256):
    pos.zero_(); torch.cuda.synchronize(); t=time.perf_counter()
    for _ in range(n): f()
    torch.cuda.synchronize(); return (time.perf_counter()-t)/n*1e6
s=torch.cuda.Stream()
with torch.cuda.stream(s):
    for _ in range(3): step()
torch.cuda.synchronize()
print(json.dumps({"name":"torch_decode_eager","value":timed(step),"unit":"us/token"}))
pos.zero_(); g=torch.cuda.CUDAGraph()
with torch.cuda.graph(g): step()
for n in (256,1000): print(json.dumps({"name":f"torch_decode_captured_{n}","value":timed(g.replay,n),"unit":"us/token"}))
